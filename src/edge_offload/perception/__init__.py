"""What the applications do around a model: tracking, geometry, overlays."""
