"""Tools of research, and what the published papers describe, for comparison: their testbed and their RPC counts."""
