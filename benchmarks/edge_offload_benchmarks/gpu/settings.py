"""Settings of a run that all its processes share, passed on in the environment."""

from __future__ import annotations

import json
import os
import pathlib
from dataclasses import asdict, dataclass
from typing import Dict, Mapping

#: The environment variable that holds the settings as JSON.
VARIABLE = "EDGE_OFFLOAD_GPU_SETTINGS"
ROOT = pathlib.Path(__file__).resolve().parents[3]
#: What ``prepare`` fills, in the checkout.
CARRIED = ROOT / ".gpu"


@dataclass(frozen=True)
class Settings:
    """Settings of one run.

    Attributes:
        device: ``cuda``, or ``cpu`` for a rehearsal.
        work: scratch folder with results; phases that are done are recognised by it.
        tiny: a selection that takes seconds.
        server_cores, client_cores: lists as ``taskset -c`` takes them; empty: any core.
        cache: folder of weights and libraries; empty: the user's.
    """

    device: str = "cuda"
    work: str = "/tmp/edge_offload_gpu"
    tiny: bool = False
    server_cores: str = ""
    client_cores: str = ""
    cache: str = ""

    @property
    def cuda(self) -> bool:
        """True if a GPU is measured."""
        return self.device == "cuda"

    @property
    def folder(self) -> pathlib.Path:
        """The work folder."""
        return pathlib.Path(self.work)

    @property
    def results(self) -> pathlib.Path:
        """The folder of one JSON file per phase."""
        return self.folder / "results"

    @property
    def site(self) -> pathlib.Path:
        """The folder of packages that phase ``install`` unpacks."""
        return self.folder / "site"

    def make_environment(self) -> Dict[str, str]:
        """Variables of a process of this run."""
        path = [self.site, ROOT / "src", ROOT / "benchmarks", ROOT]
        inherited = os.environ.get("PYTHONPATH", "")
        include = sorted((CARRIED / "include").glob("python3*")) if not _has_python_headers() else []
        compile_path = [*map(str, include[:1]), os.environ.get("CPATH", "")]
        cache = {"EDGE_OFFLOAD_CACHE": self.cache} if self.cache else {}
        return {
            **cache,
            VARIABLE: json.dumps(asdict(self)),
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, [*map(str, path), *inherited.split(os.pathsep)]))),
            "PYTHONUNBUFFERED": "1",
            "CPATH": os.pathsep.join(filter(None, compile_path)),
        }


def _has_python_headers() -> bool:
    import sysconfig

    return pathlib.Path(sysconfig.get_paths()["include"], "Python.h").exists()


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of the run that this process belongs to."""
    return Settings(**json.loads(environment[VARIABLE]))


def share_cores(count: int) -> Dict[str, str]:
    """The upper half of the cores for servers and the lower for clients, if there are at least eight."""
    if count < 8:
        return {"server_cores": "", "client_cores": ""}
    return {"server_cores": f"{count // 2}-{count - 1}", "client_cores": f"0-{count // 2 - 1}"}
