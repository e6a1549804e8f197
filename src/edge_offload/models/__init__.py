"""Networks with their weights, pre- and post-processing. Plain PyTorch: nothing here knows of offloading."""
