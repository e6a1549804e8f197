"""The scene around a robot: sweeps from files, their completion, paths through it, pictures of it."""
