"""Assignment of a machine's devices to members: one GPU has one member, unless sharing is permitted.

Members of one GPU take turns in slices of time: each would be slower than its profile says. CUDA's Multi-Process
Service (MPS) has them compute at once.

Run as ``python -m edge_offload.server.pool.accelerators DEVICE``: a separate process looks for devices, so that the
one that stays has no context on a GPU.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import List, Sequence

from edge_offload.errors import BadInput, EdgeOffloadError, Unsupported

#: Environment of a member: devices of its machine, with commas; the member of GPU n has the n-th.
DEVICES = "EDGE_OFFLOAD_POOL_DEVICES"
CPU_LABEL = "cpu"
#: Where CUDA expects the pipes of MPS (environment variable, default), and what its daemon is called.
MPS_PIPES, MPS_DEFAULT, MPS_DAEMON = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps", "nvidia-cuda-mps"


@dataclass(frozen=True)
class Accelerator:
    """A device of this machine.

    Attributes:
        name: ``cpu`` or ``cuda:n``.
        label: kind and model, as labels of Ray and profiles have it.
        identity: of the GPU on this machine, whatever a process calls it; empty: a CPU.
    """

    name: str
    label: str = CPU_LABEL
    identity: str = ""


def label(device: str) -> str:
    """Return kind and model of a device of this process, and whether TF32 is allowed there, which decides bits."""
    from edge_offload.execute import devices
    from edge_offload.execute.fingerprint import device_name

    device_ = devices.pick_device(device)
    if device_.type == "cpu":
        return CPU_LABEL
    parts = [device_.type, device_name(device_), *(["tf32"] if devices.tf32_allowed() else [])]
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.") for part in parts)[:63].rstrip("-.")


def list_devices(device: str) -> List[Accelerator]:
    """List the devices that ``device`` names: all GPUs for ``cuda``, and for ``auto`` if there is one.

    Raises:
        BadInput, Unsupported: no such device; as :func:`~edge_offload.execute.devices.pick_device`.
    """
    import torch

    from edge_offload.execute import devices

    selected = devices.pick_device(device)
    if selected.type == "cpu":
        return [Accelerator("cpu")]
    indices = range(torch.cuda.device_count()) if selected.index is None else (selected.index,)
    return [Accelerator(f"cuda:{index}", label(f"cuda:{index}"), _gpu_identity(index)) for index in indices]


def survey_devices(device: str) -> List[Accelerator]:
    """List devices like :func:`list_devices`, from a separate process.

    Raises:
        BadInput, Unsupported: no such device, or looking for it took too long.
    """
    if device == "cpu":
        return [Accelerator("cpu")]
    command = [sys.executable, "-m", "edge_offload.server.pool.accelerators", device]
    try:
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=120.0)
        report = json.loads(process.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise Unsupported(
            f"the devices of this machine do not answer: {type(error).__name__}",
            remedy="see what 'edge-offload doctor' says of them, or take --device cpu",
        ) from error
    if "refused" in report:
        raise (BadInput if report["wrong"] else Unsupported)(report["refused"])
    return [Accelerator(**each) for each in report["devices"]]


class Claims:
    """GPUs that members of this process have; other processes of this machine see them as taken.

    Args:
        accelerators: of :func:`survey_devices`.
        count: members, each with a device of its own; a CPU has any number.
        shares: whether members may share a GPU.

    Attributes:
        names: device of each member.
        label: of these devices.
        shares: whether a plan may divide them; a CPU always.

    Raises:
        BadInput: there are fewer GPUs, others have them, or they are of several models.
    """

    def __init__(self, accelerators: Sequence[Accelerator], count: int, shares: bool) -> None:
        self._sockets: List[socket.socket] = []
        free: List[Accelerator] = []
        for accelerator in accelerators:
            if len(free) < count and (not accelerator.identity or self._claim_gpu(accelerator.identity)):
                free.append(accelerator)
        if len(free) < count and accelerators[0].identity and not shares:
            self.close()
            raise BadInput(
                f"{count} members need {count} GPUs, and {len(free)} of {len(accelerators)} have no member: members "
                "that share a GPU take turns in slices of time",
                remedy="join with fewer --gpus or another --device, begin CUDA MPS (nvidia-cuda-mps-control -d), or "
                "allow it with --share-gpu",
            )
        chosen = (
            free
            if len(free) == count
            else [*free, *(accelerator for accelerator in accelerators if accelerator not in free)]
        )
        labels = {accelerator.label for accelerator in chosen[:count]}
        if len(labels) > 1:
            self.close()
            raise BadInput(
                f"these GPUs are of several models: {', '.join(sorted(labels))}",
                remedy="join once for each class, with --device cuda:n",
            )
        self.names = [chosen[number % len(chosen)].name for number in range(count)]
        (self.label,) = labels
        self.shares = shares or not accelerators[0].identity

    def close(self) -> None:
        """Give the GPUs back; the process's end does so, too."""
        for connection in self._sockets:
            connection.close()
        self._sockets = []

    def _claim_gpu(self, identity: str) -> bool:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0edge-offload-pool-{identity}")  # an abstract name: it is free once its process has ended
        except OSError:
            claim.close()
            return False
        self._sockets.append(claim)
        return True


def mps_runs() -> bool:
    """True if CUDA MPS runs: its pipes exist, and its daemon too unless the environment names the pipes.

    A container may see the pipes alone; CUDA itself refuses to begin where nobody listens to them.
    """
    if not pathlib.Path(os.environ.get(MPS_PIPES, MPS_DEFAULT), "control").exists():
        return False
    if os.environ.get(MPS_PIPES):
        return True
    import psutil

    return any(str(each.info["name"]).startswith(MPS_DAEMON) for each in psutil.process_iter(["name"]))


def _gpu_identity(index: int) -> str:
    import torch

    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is not None:
        return str(uuid)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")  # torch before 2.4 does not say
    return visible[index].strip() if index < len(visible) and visible[index].strip() else str(index)


def main() -> int:
    """Print the devices of the first argument, or the refusal, as JSON."""
    try:
        print(json.dumps({"devices": [asdict(each) for each in list_devices(sys.argv[1])]}), flush=True)
    except EdgeOffloadError as error:
        print(json.dumps({"refused": str(error), "wrong": isinstance(error, BadInput)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
