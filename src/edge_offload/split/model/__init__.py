"""What a plan is, what it costs, and the proof that it is exact."""
