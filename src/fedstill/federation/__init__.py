"""A real federation: organisations, certificates, machines that die."""
