"""Propagation of a network's result from an older frame to the current one.

``Carrier.carry(result, source, target)`` uses a :class:`~edge_offload.perception.carry.ring.FrameRing` of recent
frames. ``flow`` carries people (sparse optical flow), ``odometry`` scenes (the grid moves with the robot).
"""
