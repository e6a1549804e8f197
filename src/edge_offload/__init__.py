"""edge_offload: run a robot's neural networks wherever they finish first.

A folder has one reason to exist, and imports point one way only (``.importlinter``)::

    nodes, commands -> manager -> modes -> device -> replay -> protocol -> ir
    server -> execute -> protocol; split -> execute; passes -> ir; link

``mode``, ``errors``, ``timing``, ``records``, ``memory`` and ``notices`` are leaves that everyone may import.
Only :mod:`edge_offload.nodes` knows ROS; everything else runs without it.
"""
