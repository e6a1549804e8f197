"""The node that serves robots."""
