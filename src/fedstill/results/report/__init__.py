"""Finished runs as one page: records become series, series become charts, and one template shows them."""
