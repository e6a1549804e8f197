"""Tools that a robot does not need, and what the papers describe, for comparison: their testbed and RPC counts."""
