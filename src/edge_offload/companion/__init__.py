"""The executor process beside a program: it owns the robot's GPU where the program's ``cuda`` is the virtual device.

============  ==========================================================================
module        its one reason
============  ==========================================================================
``memory``    tensors in memory that two processes share, and questions about them
``process``   starting the process, asking it, and when there is one at all
``worker``    what the process does
``module``    a network that is computed there: modes ``local``, a local rival, a fallback
``half``      the robot's half of a plan that is computed there: mode ``split``
============  ==========================================================================
"""
