"""What every other package uses and that imports none of them: errors, files, randomness, names."""
