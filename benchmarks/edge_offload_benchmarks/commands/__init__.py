"""What this distribution adds to ``edge-offload``: ``bench`` and ``chaos`` (see :mod:`edge_offload.commands`)."""
