"""Where text comes from, who holds which rows, and how it becomes tokens."""
