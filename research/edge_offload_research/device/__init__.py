"""Whether the virtual device does what CUDA does."""
