"""Pictures by matplotlib: panels as data, one place that draws them, and files with the same bytes each time."""
