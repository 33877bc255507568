"""The typed experiment, and the files it is read from."""
