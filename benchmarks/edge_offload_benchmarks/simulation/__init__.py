"""Hours of frames in seconds: a robot, its link and the manager in the loop, in virtual time."""
