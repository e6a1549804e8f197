"""Nodes about people: finding and tracking them, following one, replaying a bag as a test."""
