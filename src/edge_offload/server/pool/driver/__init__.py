"""Parts of a pool's driver: the socket to its front, and its plans in use."""
