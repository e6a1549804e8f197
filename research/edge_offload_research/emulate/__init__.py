"""An emulated radio link in front of a server."""
