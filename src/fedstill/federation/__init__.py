"""A real federation: organisations on their own machines, with certificates, and machines that may fail."""
