"""What every room uses and that knows none of them: errors, files, randomness, names."""
