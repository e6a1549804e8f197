"""Node that serves robots."""
