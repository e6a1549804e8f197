"""Node for a detector of the user's own."""
