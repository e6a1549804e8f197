"""What nodes share whose network runs here or on a server."""
