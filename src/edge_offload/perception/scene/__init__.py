"""The scene around a robot: sweeps from files, their completion, path planning, pictures."""
