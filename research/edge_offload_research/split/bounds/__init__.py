"""How far a plan is from the best at most."""
