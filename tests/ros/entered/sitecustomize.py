"""Notes which of edge_offload's files threads enter, in a process with ENTERED_FILES: where the notes go on SIGUSR2.

SIGUSR1 begins anew. Put on PYTHONPATH by the test of the architecture page.
"""

import json
import os
import signal
import sys
import threading

WHERE = os.environ.get("ENTERED_FILES")
entered = {}
"""Thread's name -> {file: deepest stack of our files below it}."""


def note(frame, event, _argument):
    if event == "call" and "/edge_offload/" in frame.f_code.co_filename:
        files = entered.setdefault(threading.current_thread().name, {})
        name = frame.f_code.co_filename.rsplit("/edge_offload/", 1)[1]
        if name not in files:
            files[name] = []
        if name == "link/transport/client.py" and frame.f_code.co_name == "request" and not files[name]:
            stack = []
            while frame is not None:
                if "/edge_offload/" in frame.f_code.co_filename:
                    stack.append(frame.f_code.co_filename.rsplit("/edge_offload/", 1)[1])
                frame = frame.f_back
            files[name] = stack


def begin(_number, _frame):
    entered.clear()


def write(_number, _frame):
    with open(f"{WHERE}.{os.getpid()}.part", "w") as stream:
        json.dump({"command": sys.argv, "threads": {name: dict(files) for name, files in entered.items()}}, stream)
    os.replace(f"{WHERE}.{os.getpid()}.part", f"{WHERE}.{os.getpid()}.json")


if WHERE:
    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, write)
    threading.setprofile(note)
    sys.setprofile(note)
