"""What this distribution adds to ``edge-offload``: ``train`` (see :mod:`edge_offload.commands`)."""
