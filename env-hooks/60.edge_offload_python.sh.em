# generated from edge_offload/env-hooks/60.edge_offload_python.sh.em
# The Python that has torch: nodes and the edge-offload command run under it. Set it yourself to use another one.
if [ -z "${EDGE_OFFLOAD_PYTHON:-}" ] && [ -x "@(CMAKE_CURRENT_SOURCE_DIR)/.venv/bin/python3" ]; then
  export EDGE_OFFLOAD_PYTHON="@(CMAKE_CURRENT_SOURCE_DIR)/.venv/bin/python3"
fi
