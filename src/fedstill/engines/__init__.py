"""What carries messages between parties."""
