"""Mode ``split`` of a program that knows nothing of it: inferences are recognised, recorded, opened and divided."""
