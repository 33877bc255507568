"""An experiment prepared: divided, tokenised, ready for an engine."""
