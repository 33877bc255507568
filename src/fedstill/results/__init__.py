"""What a run leaves behind, and what can be said of several."""
