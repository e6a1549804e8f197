"""Calls as a program made them, on storages by number: keys, segments, the trace graph that a server runs along."""
