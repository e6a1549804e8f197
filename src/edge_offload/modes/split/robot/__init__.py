"""Mode ``split`` of a model at hand: its half of a plan, frame by frame."""
