"""Node that publishes camera frames, and its sources of frames."""
