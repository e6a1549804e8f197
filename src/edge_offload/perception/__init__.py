"""Perception around a model, for the applications: tracking, geometry, overlays."""
