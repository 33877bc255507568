"""The experiment, typed, and the files it is read from."""
