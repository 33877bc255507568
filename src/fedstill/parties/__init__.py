"""Clients and the server: a model, its data, its memory, and a few verbs."""
