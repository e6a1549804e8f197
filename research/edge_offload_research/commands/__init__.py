"""What this distribution adds to ``edge-offload``: ``plan`` (see :mod:`edge_offload.commands`)."""
