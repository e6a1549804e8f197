"""edge_offload: run a robot's neural networks wherever they finish first.

The package is split by reason to exist; imports point one way only::

    nodes, commands -> manager, server, perception, models -> split, capture -> execute -> sequence, link

``modes``, ``errors``, ``timing``, ``records``, ``memory`` and ``building`` are leaves that everyone may import.
Only :mod:`edge_offload.nodes` knows ROS; everything else runs without it.
"""
