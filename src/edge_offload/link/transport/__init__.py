"""Connections between robot and server over ZeroMQ: messages, both ends, requests and their answers."""
