"""What a program calls: running with progress, runs by their paths, and a classifier in scikit-learn's manner."""
