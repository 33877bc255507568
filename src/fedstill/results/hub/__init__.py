"""A model of a finished run for the Hugging Face Hub: its card and its files."""
