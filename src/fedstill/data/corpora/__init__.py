"""Corpora by name, and the generic door for a user's own files."""
