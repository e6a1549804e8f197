"""A room for each execution mode on the robot, behind one Runner (:mod:`.runner`)."""

from edge_offload.mode import Mode

__all__ = ["Mode"]
"""Where it was before :mod:`edge_offload.mode`: for one release."""
