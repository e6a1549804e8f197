"""ROS nodes: convert, call, publish. The only package that imports rospy."""
