"""Common parts of all nodes."""
