"""What the published papers describe, for comparison: their testbed, simulated, and their RPC counts."""
