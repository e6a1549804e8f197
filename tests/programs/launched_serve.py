"""``edge-offload`` whose executors are started by the command in the first argument (JSON); the others are its own."""

import json
import sys

from edge_offload.cli import main
from edge_offload.execute import heap

heap.LAUNCHER[:] = json.loads(sys.argv[1])
if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
