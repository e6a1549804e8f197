"""What servers are compared with."""
