"""The executor process beside a program: it owns the robot's GPU where the program's ``cuda`` is the virtual device.

============  ==========================================================================
module        contents
============  ==========================================================================
``memory``    tensors in memory that two processes share, and requests about them
``process``   starting the process, sending requests, deciding whether one is needed
``worker``    the process's main function and request handlers
``module``    a network computed in the process: mode ``local``, rivals, fallback
``half``      the robot's half of a plan, computed in the process: mode ``split``
============  ==========================================================================
"""
