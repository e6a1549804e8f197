"""After the server was lost: what the program had on the device, put there again or computed again, elsewhere."""
