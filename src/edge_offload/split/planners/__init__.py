"""Making plans."""
