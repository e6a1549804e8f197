"""What a server does for robots: a folder for each kind of request."""
