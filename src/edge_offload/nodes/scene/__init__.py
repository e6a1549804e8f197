"""The node that completes the scene around the robot."""
