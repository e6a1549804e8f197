"""One inference of the robot: the mode that a policy chose, a local rival, the fall back, and what it cost."""
