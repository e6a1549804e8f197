"""What a pool's driver is made of: the socket to its front, and the plans that it serves by."""
