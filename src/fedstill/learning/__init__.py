"""Training, distilling and predicting; knows nothing of federation."""
