"""Node that chooses the modes of networks."""
