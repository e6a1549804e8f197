"""Node that completes the scene around the robot."""
