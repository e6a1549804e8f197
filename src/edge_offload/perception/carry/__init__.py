"""Results carried along: what a network saw a few frames ago, moved to the frame of now.

``Carrier.carry(result, source, target)`` over a bounded :class:`~edge_offload.perception.carry.ring.Ring` of recent
frames; ``flow`` for people (sparse optical flow), ``odometry`` for scenes (the grid moved as the robot moved).
"""
