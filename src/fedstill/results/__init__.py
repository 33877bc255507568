"""The record of a run, and comparisons of several runs."""
