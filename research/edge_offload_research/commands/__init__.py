"""Added to ``edge-offload``: ``plan``, ``pool plan`` and such (see :mod:`edge_offload.commands`)."""
