"""Training of the networks that the package ships. Nothing here is needed to run a trained network."""
