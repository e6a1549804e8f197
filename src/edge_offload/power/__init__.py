"""Sensors and models of power; energy per inference."""
