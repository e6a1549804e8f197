"""Mode ``split``: models and recorded inferences, profiled, planned, and run block by block."""
