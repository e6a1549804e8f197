"""Other people's programs, each plainly and in every mode: bits, round trips, what was refused and why.

More than sixty programs of transformers, timm, diffusers, ultralytics, torch_geometric, stable-baselines3, whisper and
others, with seeded weights. They need an environment of their own, which is made once; robot and server are processes
of this machine.

  edge-offload bench programs --setup ~/.cache/edge_offload/programs       install the pinned packages there, once
  edge-offload bench programs --python ~/.cache/edge_offload/programs/bin/python --json programs.json
  edge-offload bench programs --python … --only timm/ transformers/bert    names that begin so
  edge-offload bench programs --list
  edge-offload bench programs --environment lerobot --setup DIR            one with a torch of its own; then
  DIR/bin/edge-offload bench programs --environment lerobot --resume --json programs.json
  edge-offload bench programs --python … --modes lazy,replay --reference cuda     a server on this machine's GPU
  edge-offload bench programs --python … --link wifi_93mbps --against lazy    replay and lazy at once, in turn

steady: the median of the round trips from the 15th inference on. A program passes in a mode if every inference has the
bits of 'exec --mode local', or with --reference cuda those of plain CUDA (TF32 off, cuDNN deterministic); in mode
split, on a robot emulated to be 8 times slower, results within 1e-5 of the largest value. How far mode local is from
the plain CPU is told beside it; where that is more than 1e-6, also how far single operators are, and how far the
program's own results move by one unit in the last place of its convolutions.
With --against two processes live at once, one in mode replay and one in the other mode, and take their inferences in
turn over one emulated link, or none (--link loopback): the ratio of their medians, replay over the other, has a 95 %
interval by bootstrap.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Mapping, Sequence

from edge_offload.errors import BadInput, Unsupported
from edge_offload.outputs import add_output, write_text
from edge_offload_benchmarks.programs.catalogue import ENVIRONMENTS, MAIN

MODES = ("local", "per_op", "cached", "lazy", "replay", "split")
OPERATORS = "edge_offload_benchmarks.programs.operators"
LOOPBACK = "loopback"
CLOSE = 1e-6
"""To the plain CPU, as a share of the largest value: farther off, operators are looked at one by one."""
SLOWDOWN = 8
"""Of the robot in mode split, which otherwise had no reason to divide anything with a server of the same machine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--setup", type=pathlib.Path, metavar="DIR", help="make the environment there and end")
    parser.add_argument("--python", type=pathlib.Path, metavar="FILE", help="the Python of that environment")
    parser.add_argument("--environment", choices=tuple(ENVIRONMENTS), default=MAIN, help="whose programs (%(default)s)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="programs whose names begin so")
    parser.add_argument("--modes", default="local,lazy,replay", help=f"some of {','.join(MODES)} (%(default)s)")
    parser.add_argument("--reference", choices=("cpu", "cuda"), default="cpu",
                        help="whose bits are wanted: exec --mode local's or plain CUDA's (%(default)s)")  # fmt: skip
    parser.add_argument("--inferences", type=int, default=20, metavar="N", help="of each program (20)")
    parser.add_argument("--against", choices=("lazy", "cached", "per_op"), help="replay and this mode in pairs")
    parser.add_argument("--link", default="wifi_93mbps", metavar="NAME", help="of --against, or loopback (%(default)s)")
    parser.add_argument("--pairs", type=int, default=40, metavar="N", help="steady inferences of --against (40)")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="for one program in one mode (300)")
    parser.add_argument("--quick", action="store_true", help="the dozen that tests run")
    parser.add_argument("--list", action="store_true", help="name the programs and end")
    parser.add_argument(
        "--resume", action="store_true", help="go on with what --json holds: programs and modes that it lacks"
    )
    parser.add_argument("--for", dest="for_s", type=float, default=math.inf, metavar="S", help="begin none after S s")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record here, after each program")


def run(args: argparse.Namespace) -> int:
    """Run the corpus, print a line a program and mode; 1 if anything is wrong, hangs or fails."""
    from edge_offload.execute import heap
    from edge_offload_benchmarks.processes import Server
    from edge_offload_benchmarks.programs.catalogue import choose_programs, load_catalogue
    from edge_offload_benchmarks.programs.child import REFERENCE
    from edge_offload_benchmarks.programs.compare import Run, judge_run, largest_error, run_program

    if args.setup is not None:
        return _set_up(args.setup, args.environment)
    names = [
        name for name in choose_programs(args.only, args.environment) if not args.quick or load_catalogue()[name].quick
    ]
    if args.list:
        print("\n".join(names))
        return 0
    modes = args.modes.split(",")
    if not names or not set(modes) <= set(MODES):
        raise BadInput("nothing to run", remedy=f"--only as in --list, --modes of {','.join(MODES)}")
    if args.reference == "cuda":
        _check_reference(args, modes)
    python = str(args.python or sys.executable)
    if args.against is not None:
        return _measure_pairs(args, names, python)
    records: Dict[str, Dict[str, Any]] = {}
    if args.resume and args.json is not None and args.json.exists():
        records = {item["program"]: item for item in json.loads(args.json.read_text(encoding="utf-8"))["programs"]}
        if any(item.get("reference", "cpu") != args.reference for item in records.values()):
            raise BadInput(f"{args.json} has results of another --reference", remedy="name another file")
    environment, until = _make_environment(), time.monotonic() + args.for_s
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder) / "keys"
        with Server("--keys", str(keys)) as server:
            for name in names:
                record = records.get(name, {"program": name, "varies": load_catalogue()[name].varies, "modes": {}})
                missing = [mode for mode in modes if mode not in record["modes"]]
                if not missing or time.monotonic() > until:
                    continue
                child = [python, "-m", "edge_offload_benchmarks.programs.child", name]

                session = ["--server", server.address, "--keys", str(keys)]

                def start_program(mode: str, child: List[str] = child, session: List[str] = session) -> Run:
                    file = pathlib.Path(folder) / f"{mode}.pt"
                    for stale in (file, file.with_suffix(".json")):
                        stale.unlink(missing_ok=True)
                    if mode == "cuda":
                        command = [*heap.LAUNCHER, *child, "cuda", str(args.inferences), str(file)]
                        return run_program(command, {**environment, REFERENCE: "1"}, args.timeout)
                    if mode == "plain":
                        return run_program([*child, "cpu", str(args.inferences), str(file)], environment, args.timeout)
                    command = [*_exec_command(mode), *([] if mode == "local" else session)]
                    if mode == "split":
                        command += ["--slowdown", str(SLOWDOWN), "--tally", str(file.with_suffix(".json"))]
                    command += ["--", *child, "cuda", str(args.inferences), str(file)]
                    return run_program(command, environment, args.timeout)

                base = "cuda" if args.reference == "cuda" else "local"
                local = start_program(base)
                if base == "cuda":
                    record.update(reference=base, plain="", plain_error=None)
                if "plain" not in record:
                    record["plain"] = start_program("plain").problem or "ran"
                    record["plain_error"] = largest_error(
                        *(pathlib.Path(folder) / f"{mode}.pt" for mode in ("plain", "local"))
                    )
                if (record["plain_error"] or 0.0) > CLOSE and "operators" not in record:
                    local_command = [*_exec_command("local"), "--", python, "-m", OPERATORS, name, "4"]
                    record["operators"] = dict(*run_program(local_command, environment, args.timeout).lines[-1:])
                for mode in missing:
                    result = local if mode == "local" else start_program(mode)
                    off = largest_error(*(pathlib.Path(folder) / f"{each}.pt" for each in (base, mode)))
                    record["modes"][mode] = judge_run(local, result, args.inferences, off if mode == "split" else None)
                    if base == "cuda" and local.problem:
                        record["modes"][mode].update(verdict="failed", reason=f"plain CUDA: {local.problem}")
                    if mode == "split":
                        record["modes"][mode]["split"] = _summarise_split(
                            pathlib.Path(folder) / "split.json", result.stderr
                        )
                    _print_verdict(name, mode, record)
                records[name] = record
                if args.json is not None:
                    _write_record(args.json, list(records.values()), args.inferences)
    for item in records.values():
        if (item["plain_error"] or 0.0) > CLOSE:
            of = item.get("operators") or {"worst": {}, "grown": math.nan}
            worst = max(of["worst"].values(), default=math.nan)
            print(f"{item['program']}: {item['plain_error']:.1e} from the plain CPU, one operator at most {worst:.1e};")
            print(f"  one unit in the last place of convolutions moves the program by {of['grown']:.1e}")
    verdicts = [row["verdict"] for item in records.values() for row in item["modes"].values()]
    print(", ".join(f"{verdicts.count(kind)} {kind}" for kind in dict.fromkeys(verdicts)))
    return 1 if {"wrong", "hangs", "failed"} & set(verdicts) else 0


def _check_reference(args: argparse.Namespace, modes: Sequence[str]) -> None:
    """Raise BadInput or Unsupported where nothing can be compared with plain CUDA."""
    from edge_offload.execute import devices, heap

    if args.against is not None or "local" in modes:
        raise BadInput("mode local and --against compute on the CPU", remedy="--modes lazy,replay --reference cuda")
    if not heap.LAUNCHER:
        devices.pick_device("cuda")


def _exec_command(mode: str) -> List[str]:
    return [sys.executable, "-m", "edge_offload.cli", "exec", "--threads", "1", "--mode", mode]


def _summarise_split(tally: pathlib.Path, stderr: Sequence[str]) -> Dict[str, Any]:
    """Read the counters of mode split, and its lines on what is divided and why not."""
    counted = json.loads(tally.read_text(encoding="utf-8")).get("split", {}) if tally.exists() else {}
    begin = "edge_offload: "
    return {**counted, "said": [line[len(begin) :][:300] for line in stderr if line.startswith(begin)]}


def _make_environment() -> Dict[str, str]:
    paths = ":".join(path for path in sys.path if path)
    return {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def _measure_pairs(args: argparse.Namespace, names: List[str], python: str) -> int:
    """Hold replay against another mode; 1 if a program fails or results differ."""
    from edge_offload_benchmarks.processes import Server
    from edge_offload_benchmarks.programs.catalogue import list_packages, load_catalogue
    from edge_offload_benchmarks.programs.pairs import measure_pairs
    from edge_offload_research.emulate.emulator import Emulator
    from edge_offload_research.emulate.trace import named_link

    modes = ("replay", args.against)
    record: Dict[str, Any] = {"link": args.link, "modes": modes, "packages": {}, "programs": []}
    if args.resume and args.json is not None and args.json.exists():
        record = {**record, **json.loads(args.json.read_text(encoding="utf-8"))}
    done = {item["program"] for item in record["programs"]}
    with tempfile.TemporaryDirectory() as folder:
        keys = str(pathlib.Path(folder) / "keys")
        with Server("--keys", keys) as server, contextlib.ExitStack() as stack:
            address = server.address
            if args.link != LOOPBACK:
                address = stack.enter_context(Emulator("127.0.0.1:0", address, named_link(args.link))).address
            session = ["--server", address, "--keys", keys]
            for name in [name for name in names if name not in done]:
                program = [python, "-m", "edge_offload_benchmarks.programs.child", name, "cuda"]
                result = measure_pairs(program, modes, session, _make_environment(), args.pairs, args.timeout)
                row = {"program": name, "varies": load_catalogue()[name].varies, **result}
                record["programs"].append(row)
                record["packages"] = list_packages(item["program"] for item in record["programs"])
                _print_pairs(row)
                if args.json is not None:
                    write_text(args.json, json.dumps(record, indent=1))
    failed = [item for item in record["programs"] if "problem" in item or item["equal"] < item["inferences"]]
    ratios = sorted(item["ratio"] for item in record["programs"] if "ratio" in item)
    if ratios:
        print(f"{len(ratios)} programs; {sum(ratio <= 1.1 for ratio in ratios)} up to 1.1, worst {ratios[-1]:.2f}")
    return 1 if failed else 0


def _print_pairs(row: Dict[str, Any]) -> None:
    if "problem" in row:
        print(f"{row['program']:44}{row['problem']}", flush=True)
        return
    mine, other = row["modes"].values()
    print(
        f"{row['program']:44}{row['ratio']:5.2f} ({row['low']:.2f} to {row['high']:.2f})  "
        f"{mine['median_s'] * 1e3:.1f} / {other['median_s'] * 1e3:.1f} ms  trips {mine['steady_trips']:g} / "
        f"{other['steady_trips']:g}, new {mine['new_trips']}  learning {row['learning_share']:.0%}, "
        f"most {row['learning_s'] * 1e3:.0f} ms  equal {row['equal']}/{row['inferences']}",
        flush=True,
    )


def _print_verdict(name: str, mode: str, record: Dict[str, Any]) -> None:
    row = record["modes"][mode]
    trips = "" if mode == "local" else f"  trips {row['first_trips']} first, {row['steady_trips']} steady"
    reason = f"  {row['reason']}" if row["reason"] else ""
    if row.get("split", {}).get("inferences") and "off" in row:
        trips = f"  {row['split']['inferences']} divided, off by {row['off']:.1e}"
    if record["plain_error"]:
        reason = f"  plain CPU: {record['plain_error']:.1e}{reason}"
    print(f"{name:44}{mode:8}{row['verdict']:9}{row['equal']}/{row['inferences']}{trips}{reason}", flush=True)


def _write_record(path: pathlib.Path, programs: List[Dict[str, Any]], inferences: int) -> None:
    from edge_offload_benchmarks.programs.catalogue import list_packages

    needed = list_packages(item["program"] for item in programs)
    record = {"inferences": inferences, "packages": needed, "programs": programs}
    write_text(path, json.dumps(record, indent=1))


def _set_up(folder: pathlib.Path, name: str) -> int:
    """The environment of that name, see :class:`~edge_offload_benchmarks.programs.catalogue.Environment`."""
    environment = ENVIRONMENTS[name]
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if environment.isolated:
        _install_packages(folder, [*environment.requirements, *_project_requirements()], {})
        _install_packages(folder, ["--no-deps", *(word for root in _find_checkout() for word in ("-e", str(root)))], {})
        print(f"now: {folder / 'bin' / 'edge-offload'} bench programs --environment {name}")
        return 0
    import sysconfig

    import numpy
    import torch

    (site,) = folder.glob("lib/python3*/site-packages")
    seen = sysconfig.get_paths()["purelib"]
    (site / "zz_edge_offload.pth").write_text(f"import site; site.addsitedir({seen!r})\n", encoding="utf-8")
    pins = [f"numpy=={numpy.__version__}", f"torch=={torch.__version__.split('+')[0]}"]
    _install_packages(folder, [*environment.requirements, *pins], {"PYTHONPATH": seen})
    print(f"now: edge-offload bench programs --python {folder / 'bin' / 'python'}")
    return 0


def _install_packages(folder: pathlib.Path, requirements: Sequence[str], environment: Mapping[str, str]) -> None:
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", *requirements]
    if subprocess.run(command, env={**_environment_without("PYTHONPATH"), **environment}, check=False).returncode:
        raise Unsupported("the packages of the corpus cannot be installed here", remedy="see what pip said above")


def _project_requirements() -> List[str]:
    """List the requirements of this package and its benches, but for torch and NumPy, which the environment has."""
    import importlib.metadata

    stderr = [line for package in ("edge_offload", "edge_offload_benchmarks") for line in
            importlib.metadata.requires(package) or () if "extra ==" not in line]  # fmt: skip
    return [line for line in stderr if re.split(r"[^\w-]", line)[0] not in ("torch", "numpy", "edge_offload")]


def _find_checkout() -> List[pathlib.Path]:
    import edge_offload_benchmarks

    benchmarks = pathlib.Path(edge_offload_benchmarks.__file__).parents[1]
    if not (benchmarks.parent / "setup.cfg").exists():
        raise Unsupported("this environment is made from a checkout only", remedy="clone the repository")
    return [benchmarks.parent, benchmarks]


def _environment_without(name: str) -> Dict[str, str]:
    import os

    return {key: value for key, value in os.environ.items() if key != name}
