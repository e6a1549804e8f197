"""What every node does the same way."""
