"""The node that publishes LiDAR sweeps, and where sweeps come from."""
