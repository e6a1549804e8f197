"""Nodes about people: detecting and tracking them, following one, replaying a bag as a test."""
