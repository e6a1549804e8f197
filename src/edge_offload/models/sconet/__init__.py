"""SCONet: the scene around a robot, completed and labelled from one LiDAR sweep."""
