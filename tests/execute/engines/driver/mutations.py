"""What happens when one line of the product's use of pycuda is missing; each in a process of its own.

A thread that ends with a context on its stack makes pycuda end the process, so the faults are no matter of exceptions.
"""

from __future__ import annotations

import ctypes
import faulthandler
import inspect
import json
import os
import re
import sys
import threading
import traceback
from typing import Any, Dict, List

import torch

from edge_offload.execute.engines import buffers, export, tensor_rt
from edge_offload.execute.engines.base import CLOSE, TOLERANCE, find_mismatch
from edge_offload.execute.threads import pin
from tests.execute.engines.driver import prepare
from tests.execute.engines.driver.small import Small, picture

CALL = re.compile(r"\.(push|pop|synchronize|free|detach)\(\)$")
SOURCE = inspect.getsource(buffers.PycudaBuffers).splitlines()
LINES = [number for number, line in enumerate(SOURCE) if CALL.search(line)]
#: In the place of the number of a line: nothing is missing.
UNCHANGED = -1


def name_of(line: int) -> str:
    """What the line says."""
    return "whole" if line == UNCHANGED else SOURCE[line].strip()


def without(line: int) -> Any:
    """The class PycudaBuffers without one of its lines."""
    source = list(SOURCE)
    if line != UNCHANGED:
        source[line] = re.sub(r"\S.*", "pass", source[line])
    names = dict(vars(buffers))
    exec("from __future__ import annotations\n" + "\n".join(source), names)
    return names["PycudaBuffers"]


def scenario(kind: Any, bindings: Any, plan: bytes, library: Any, faults: List[str]) -> None:
    """Load, run three frames, close, as the one thread that owns an engine does; what is wrong goes to ``faults``."""
    current, before = ctypes.c_void_p(), count_held(library)

    def check(right: bool, fault: str) -> None:
        if not right:
            faults.append(fault)

    def no_context() -> bool:
        library.cuCtxGetCurrent(ctypes.byref(current))
        return current.value is None

    try:
        engine = tensor_rt.TensorRTEngine(bindings, plan, kind())
        for number in range(3):
            with torch.inference_mode():
                want = Small().eval()(picture(number))
            check(find_mismatch(want, engine.run([picture(number)]), TOLERANCE[CLOSE]) == "", "wrong results")
            check(no_context(), "a context stays in the thread")
        engine.close()
        check(count_held(library) == before, f"the device holds {count_held(library)} and held {before}")
    except Exception as error:
        faults.append(f"{type(error).__name__}: {error}")


def count_held(library: Any) -> List[int]:
    """See the fixture of this name."""
    numbers = (ctypes.c_size_t * 4)()
    library.stand_in_held(numbers)
    return list(numbers)


def main() -> None:
    """Print as JSON what went wrong with each line missing."""
    pin(threads=1)
    sys.path.append(str(prepare.folder() / "site"))
    library = ctypes.CDLL(str(prepare.library()), mode=ctypes.RTLD_GLOBAL)
    import tensorrt_rtx_bindings

    from tests.execute.engines.driver.execution import Bindings, DriverMemory

    bindings = Bindings(tensorrt_rtx_bindings, DriverMemory(str(prepare.library())))
    made = tensor_rt.TensorRT(buffers="pycuda", bindings=lambda: bindings)
    plan = made.build(export.export_onnx(Small().eval(), [picture(0)]), 1)
    faults_by_line: Dict[str, str] = {}
    for line in (UNCHANGED, *LINES):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            faults: List[str] = []
            try:
                thread = threading.Thread(target=scenario, args=(without(line), bindings, plan, library, faults))
                thread.start()
                thread.join()
            except BaseException:
                faults.append(traceback.format_exc())
            os.write(writing, "; ".join(dict.fromkeys(faults)).encode()[:4000])
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            text = stream.read().decode()
        status = os.waitpid(child, 0)[1]
        faults_by_line[name_of(line)] = text or (
            f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else ""
        )
    print(json.dumps(faults_by_line))


if __name__ == "__main__":
    main()
