"""The start of a program: the connection is there before torch is."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from edge_offload.native import libraries
from tests.programs.serving import CLI, ENVIRONMENT, Serving, run
from tests.server.server_rig import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device"),
]

#: Waits for a file within its import of torch.
PROGRAM = """
import importlib.abc, pathlib, sys, time

class Late(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        while name == "torch.nn" and not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.02)

sys.meta_path.insert(1, Late())
import torch
print(float((torch.ones(3).cuda() * 2).sum()))
"""


def test_a_program_connects_before_it_has_imported_torch(tmp_path: pathlib.Path) -> None:
    serving, gate = Serving(tmp_path), tmp_path / "gate"

    def robots() -> int:
        status = [*CLI, "status", "--json", "--server", serving.address, "--keys", str(serving.keys)]
        return int(json.loads(run(status).stdout)["sessions"])

    try:
        assert robots() == 1, "the one that looks"
        command = [*serving.exec(), sys.executable, "-c", PROGRAM, str(gate)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as program:
            until(lambda: robots() == 2, 60)
            gate.touch()
            assert program.communicate(timeout=60)[0] == "6.0\n"
    finally:
        gate.touch()
        serving.close()
