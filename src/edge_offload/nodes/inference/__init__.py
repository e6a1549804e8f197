"""Common parts of nodes with a network that runs on the robot or on a server."""
