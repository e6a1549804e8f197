"""A room for each execution mode on the robot, behind one Runner (:mod:`.runner`)."""
