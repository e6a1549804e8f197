"""The node for a detector of the user's own."""
