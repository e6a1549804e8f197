"""How the commands of the documentation are run here: what is shortened, what stays, what a user brings along.

Everything that is not named here runs as it stands there. Standard library only.
"""

from __future__ import annotations

import pathlib
import re
from typing import List, Optional, Tuple

#: (pattern, replacement): one machine is robot and server, and what takes long is shortened.
SHORTER: List[Tuple[str, str]] = [
    (r"gpu-machine|\bgpu(?=:\d)", "127.0.0.1"),
    # what the set-up has installed is not installed again, and nothing is downloaded
    (r"^apt-get install [^&]*(&& )?", ""),
    (
        r"^(\S*python3 -m venv)(?: --system-site-packages)? (\S+)$",
        r"\1 --system-site-packages \2 && "
        r"""echo "import site; site.addsitedir('$(readlink -f CHECKOUT/.venv/lib/python3*/site-packages)')" """
        r"> $(echo \2/lib/python3*/site-packages)/set_up.pth",
    ),
    (
        r"^(\S*pip) install ",
        r"PYTHONPATH=$(readlink -f CHECKOUT/.venv/lib/python3*/site-packages) "
        r"\1 install --no-deps --no-build-isolation ",
    ),
    (r"/path/to/venv", "CHECKOUT/.venv"),
    # the Python that the reader has torch in
    (r"-- python (?=(?:detect|your_program)\.py)", "-- CHECKOUT/.venv/bin/python "),
    # the workspace is built already
    (r"git clone <\S[^>]*> edge_offload", "ln -sfn CHECKOUT edge_offload"),
    (r"&& catkin_make$", "&& ln -sfn CHECKOUT/devel devel"),
    (r"^\./scripts/run$", "./scripts/run --headless --frames 5"),
    (r"^(roslaunch \S+ kapao_tracking\.launch.*)", r"\1 headless:=true record:=false progress:=1"),
    (r"^(roslaunch \S+ agrnav\.launch.*)", r"\1 headless:=true cells:=64 frames:=9999 progress:=1"),
    (r"(--bind tcp://)0\.0\.0\.0:5700", r"\g<1>0.0.0.0:5700"),
    (r"^(edge-offload train sconet --data .*)", r"\1 --steps 2"),
    (r"^(edge-offload train sconet (?!--export).*)", r"\1 --batch 1 --crop 16 --window 8 --threads 1"),
    (r"--steps \d+", "--steps 2"),
    (r"--scenes \d+ --runs \d+", "--scenes 1 --runs 1"),
    (r"scene make --count \d+", "scene make --count 2"),
    (r"--calibrate \d+", "--calibrate 1"),
    (r"--train \S+ --validate \S+", "--train 0:4 --validate 4:6 --epochs 1 --batch 2 --size 256 --window 128x128"),
    # all phases run in tests/benchmarks/test_gpu_kit.py
    (r"^(scripts/gpu run --device cpu --tiny .*)", r"\1 install facts"),
    (r"^(edge-offload track .*)", r"\1 --frames 2"),
    (r"^(edge-offload regress .*)", r"\1 --frames 2"),
]

#: (pattern, what it has to print): commands that stay; they end with their block.
STAYS: List[Tuple[str, str]] = [
    (r"^roslaunch .* input:=", r"progress no result"),
    # the first process is the master, which does not answer yet
    (r"^roslaunch \S+ (robot|server)\.launch", r"process\[(?!master|rosout)\S+\]: started with pid"),
    (r"^roslaunch \S+ patrol\.launch", r"model sconet is ready"),
    (r"^roslaunch (?!\S+ regress\.launch)", r"progress [1-9]\d* (of \d+ )?results"),
    # "WARNING: topic [...] does not appear to be published yet" is no message
    (r"^rostopic echo", r"(?m)^(?!WARNING|ERROR)\w+:"),
    (r"^\S*edge-offload serve", r"listening on tcp://"),
    (r"^edge-offload dashboard", r"http://\S+:\d+"),
    (r"^edge-offload top\b", r"\d\d:\d\d:\d\d "),
    (r"^edge-offload bench", r"\w"),
]

LIMIT_S = 420.0
"""What a command may take: the first use of the virtual device builds it, and a busy machine is slow."""

PROGRAM = """
import torch

network = torch.nn.Linear(8, 4).cuda().eval()
with torch.no_grad():
    for number in range(5):
        print(network(torch.full((1, 8), float(number), device="cuda")).cpu())
"""

#: What a user brings along, by the word that stands for it in a command: a text, or the command that makes it.
BRINGS = {
    "your_program.py": PROGRAM,
    "detect.py": PROGRAM,
    "walk.bag": "edge-offload sample-bag walk.bag --frames 4",
    "yours.avi": "cp {video} yours.avi",
    "~/ws": "mkdir -p ~/ws/src",
    "dataset/sequences": "edge-offload scene make --count 2 --out dataset/sequences/00/voxels",
    "runs/last": "./scripts/run --headless --frames 5",
}

#: Commands that print commands for the other machine: these are run as well, here.
PRINTS_COMMANDS = r"^edge-offload keys new"
PRINTED = re.compile(r"^\s+(edge-offload keys trust .*)$", re.MULTILINE)
HOST = re.compile(r"(--server -- )[^\s:]+")


def shortened(text: str, checkout: str = ".") -> str:
    """The command as it is run here, without the comment behind it; ``checkout``: the user's copy of the repository."""
    if "\n" not in text:
        text = re.sub(r"\s+#\s.*$", "", text)
    for pattern, replacement in SHORTER:
        text = re.sub(pattern, replacement, text)
    return text.replace("CHECKOUT", checkout)


def place(text: str) -> str:
    """What a command that stays takes for itself alone: the one before it that has it is ended first."""
    launch = re.match(r"roslaunch \S+ (server\.launch)?", text)
    return "a browser" if "dashboard" in text else f"roslaunch {launch[1] or ''}" if launch else text


def stays(text: str) -> Optional[str]:
    """What a command that stays has to print; None for one that ends."""
    return next((shows for pattern, shows in STAYS if re.search(pattern, text)), None)


def printed_commands(output: str, server: str) -> List[str]:
    """Commands that a command has printed for the other machine, which is this one; ``server``: what it is called."""
    return [HOST.sub(rf"\g<1>{server}", address) for address in PRINTED.findall(output)]


def sample_video(cache: pathlib.Path) -> pathlib.Path:
    """Where the set-up has put the sample video."""
    installed = pathlib.Path("/usr/share/doc/opencv-doc/examples/data/vtest.avi")
    return installed if installed.exists() else cache / "vtest.avi"
