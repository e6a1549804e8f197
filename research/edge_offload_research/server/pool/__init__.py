"""Other ways to plan a pool, and the load that a plan bears."""
