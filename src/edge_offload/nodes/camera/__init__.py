"""The node that publishes frames, and where frames come from."""
