"""Experiments: every number that the documentation quotes comes out of here."""
