# generated from edge_offload/env-hooks/50.edge_offload_msgs.sh.develspace.em
# The message package is nested in edge_offload, where rospack does not look for it.
_edge_offload_msgs="@(CMAKE_CURRENT_SOURCE_DIR)/src/edge_offload_msgs"
case ":$ROS_PACKAGE_PATH:" in
  *":$_edge_offload_msgs:"*) ;;
  *) export ROS_PACKAGE_PATH="$_edge_offload_msgs${ROS_PACKAGE_PATH:+:$ROS_PACKAGE_PATH}" ;;
esac
unset _edge_offload_msgs
