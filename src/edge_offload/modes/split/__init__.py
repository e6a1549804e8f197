"""Mode ``split`` on the robot: for models at hand (``robot``) and for unmodified programs (``unmodified``)."""
