"""Notes which of edge_offload's files threads enter, in a process with ENTERED_FILES: the start of the notes' path.

SIGUSR1 begins anew, SIGUSR2 writes. On PYTHONPATH in tests/ros/test_frame_walk.py.
"""

import json
import os
import signal
import sys
import threading

WHERE = os.environ.get("ENTERED_FILES")
MARK = "/src/edge_offload/"
entered = {}
"""Thread's name -> file -> the functions of it that were called, each with our files on the stack at the first call."""


def note(frame, event, _argument):
    if event != "call" or MARK not in frame.f_code.co_filename:
        return
    files = entered.setdefault(threading.current_thread().name, {})
    name = frame.f_code.co_filename.rsplit(MARK, 1)[1]
    functions = files.setdefault(name, {})
    if frame.f_code.co_name not in functions:
        stack = functions[frame.f_code.co_name] = []
        while frame is not None:
            if MARK in frame.f_code.co_filename:
                stack.insert(0, frame.f_code.co_filename.rsplit(MARK, 1)[1])
            frame = frame.f_back


def begin(_number, _frame):
    entered.clear()


def write(_number, _frame):
    path = f"{WHERE}.{os.getpid()}"
    with open(f"{path}.part", "w") as stream:
        stream.write(json.dumps(entered))  # at once: piece by piece, other threads enter more meanwhile, and it raises
    os.replace(f"{path}.part", f"{path}.json")


if WHERE:
    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, write)
    threading.setprofile(note)
    sys.setprofile(note)
