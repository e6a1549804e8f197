"""Node that publishes LiDAR sweeps, and its sources of sweeps."""
