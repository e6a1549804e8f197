"""The check-up says what is missing and what to do, in text and in JSON."""

import importlib.metadata
import json
import sys

import pytest
import torch

from edge_offload import cli, records
from edge_offload.errors import Unsupported


def test_json_fits_the_schema_and_every_problem_but_absence_has_a_message(capsys, tmp_path):
    code = cli.main(["doctor", "--json", "-", "--keys", str(tmp_path)])
    record = json.loads(capsys.readouterr().out)
    records.validate("doctor", record)
    findings = {item["what"]: item for item in record["findings"]}
    assert {"python", "torch", "device cpu", "device cuda", "compiler", "ROS", "npm", "client key", "cache"} <= set(
        findings
    )
    assert findings["device cpu"]["level"] == "ok"
    assert code == (1 if any(item["level"] == "missing" for item in record["findings"]) else 0)
    assert all(item["remedy"] for item in record["findings"] if item["level"] != "ok")


def test_unreachable_server_is_missing(capsys, tmp_path, monkeypatch):
    from edge_offload import checkup

    (finding,) = checkup._link("tcp://127.0.0.1:9", str(tmp_path))
    assert finding.level == "missing"
    assert "127.0.0.1:9" in finding.detail
    assert finding.remedy


def test_server_is_measured(capsys, tmp_path):
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.server.server import OffloadServer
    from edge_offload.server.settings import Compute

    with OffloadServer(keys=KeyStore(tmp_path), compute=Compute("cpu", threads=torch.get_num_threads())) as server:
        code = cli.main(["doctor", "--server", server.address, "--keys", str(tmp_path)])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "request and answer in" in out
    assert "compute the same bits" in out
    assert "0.0" in out


def test_absent_compiler_is_a_warning(monkeypatch):
    from edge_offload import checkup

    monkeypatch.setattr(checkup.shutil, "which", lambda *_args, **_more: None)
    monkeypatch.delenv("CXX", raising=False)
    (finding,) = checkup._compiler()
    assert (finding.level, bool(finding.remedy)) == ("warn", True)


@pytest.mark.process
def test_the_kind_of_virtual_gpu_is_reported(monkeypatch, tmp_path):
    from edge_offload import checkup
    from edge_offload.native import libraries, recipe, torch_facts

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("EDGE_OFFLOAD_DEVICE", raising=False)
    monkeypatch.setattr(torch_facts, "built_with_cuda", lambda: True)
    monkeypatch.setattr(libraries, "device_problem", lambda: None)  # compiling takes half a minute
    (finding,) = checkup._virtual_device()
    assert finding.level == "ok"
    assert "not built yet" in finding.detail
    assert "CUDA kernels" in finding.detail
    monkeypatch.setattr(recipe, "compiler", lambda _language="C++": None)
    (finding,) = checkup._virtual_device()
    assert (finding.level, finding.remedy) == ("warn", "apt install g++")
    assert "cannot be built" in finding.detail
    with pytest.raises(Unsupported, match=r"C\+\+ compiler"):
        libraries.build_device()
    monkeypatch.setenv("EDGE_OFFLOAD_DEVICE", "rust")
    assert checkup.check()  # what it says of it is a finding too


@pytest.mark.parametrize(
    ("version", "fits"),
    [("2.13.0+cpu", True), ("2.11.0a0+git1", True), ("2.1", True), ("2.0", False), ("1.13.1", False)],
)  # fmt: skip
def test_versions_as_builds_of_torch_have_them_are_compared(monkeypatch, version, fits):
    from edge_offload import requirements

    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "torch" else "99.0")
    assert [one.name for one in requirements.unmet()] == ([] if fits else ["torch"])


def test_without_the_package_that_compares_versions_doctor_names_it(monkeypatch):
    from edge_offload import checkup

    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    (finding,) = checkup._packages()
    assert (finding.level, finding.detail) == ("missing", "packaging (not installed)")


def test_packages_that_do_not_fit_are_named_with_the_versions(monkeypatch):
    from edge_offload import checkup

    (finding,) = checkup._packages()
    assert (finding.level, finding.remedy) == ("ok", ""), finding
    real = importlib.metadata.version

    def version(name):
        if name == "lz4":
            raise importlib.metadata.PackageNotFoundError(name)
        return {"pyzmq": "22.3.0", "torch": "1.13.1"}.get(name) or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    (finding,) = checkup._packages()
    assert finding.level == "missing"
    assert finding.detail == (
        "torch>=2.0.1 (1.13.1 is installed), pyzmq>=25 (22.3.0 is installed), lz4>=4 (not installed)"
    )
    assert finding.remedy.endswith("-m pip install 'torch>=2.0.1' 'pyzmq>=25' 'lz4>=4'")


@pytest.mark.parametrize(("numpy", "pin"), [("1.26.4", " 'numpy<2'"), ("2.4.6", "")])
def test_what_installs_an_extra_is_of_this_python_and_leaves_the_numpy_of_ros(monkeypatch, numpy, pin):
    """The engines' packages take numpy 2 where nobody says otherwise, and cv_bridge is built for numpy 1."""
    from edge_offload import requirements

    monkeypatch.setattr(importlib.metadata, "version", lambda name: numpy)
    monkeypatch.setattr(sys, "executable", "/opt/a venv/bin/python3")
    assert requirements.install("engines") == (f"'/opt/a venv/bin/python3' -m pip install 'edge_offload[engines]'{pin}")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            "2.1.0a0+41361538.nv23.06",
            "torch 2.1.0, Python 3.8, aarch64 ran exec local, exec replay on Ubuntu 20.04, 2026-11-27 under emulation",
        ),
        ("2.1.2", "torch 2.1.2, Python 3.8, aarch64 is not among those that scripts/version-matrix has run: torch 2.1"),
    ],
)  # fmt: skip
def test_tested_features_of_this_torch_are_reported(monkeypatch, tmp_path, version, message):
    from edge_offload import checkup
    from edge_offload.native import torch_facts

    side = {"torch": "2.1.0+cpu", "python": "3.8.18", "arch": "aarch64", "system": "Ubuntu 20.04"}
    modes = {"doctor": "names what works", "exec local": "same bits", "exec replay": "1e-6", "exec split": "FAILED: "}
    row = {"robot": side, "server": side, "emulated": True, "date": "2026-11-27", "modes": modes}
    other = {**side, "system": "Debian GNU/Linux 12"}
    elsewhere = {**row, "robot": other, "server": other, "modes": {"exec local": "same bits"}}
    (tmp_path / "platforms.json").write_text(json.dumps({"rows": [row, elsewhere]}))
    monkeypatch.setattr(checkup, "system_name", lambda: "Ubuntu 20.04")
    monkeypatch.setattr(checkup, "__file__", str(tmp_path / "checkup.py"))
    monkeypatch.setattr(torch_facts, "torch_version", lambda: version)
    monkeypatch.setattr(checkup.platform, "python_version", lambda: "3.8.10")
    monkeypatch.setattr(checkup.platform, "machine", lambda: "aarch64")
    (finding,) = checkup._platform()
    assert finding.level == "ok"
    assert finding.detail.startswith(message)


def test_the_modes_that_work_are_named(monkeypatch):
    from edge_offload import checkup
    from edge_offload.ir import build
    from edge_offload.native import libraries
    from edge_offload.native.recipe import BuildFailed
    from edge_offload.split.runtime import tracing

    monkeypatch.setattr(build, "can_export", lambda: False)
    monkeypatch.setattr(libraries, "built_device", lambda: None)
    monkeypatch.setattr(libraries, "device_problem", lambda: None)
    (finding,) = checkup._modes()
    assert finding.level == "ok"
    assert "replay" in finding.detail
    assert "split (traced by make_fx)" in finding.detail

    def refuse(*_args):
        raise Unsupported("this torch traces nothing")

    monkeypatch.setattr(libraries, "device_problem", lambda: BuildFailed("no"))
    monkeypatch.setattr(tracing, "trace_module", refuse)
    (finding,) = checkup._modes()
    assert (finding.level, bool(finding.remedy)) == ("warn", True)
    assert "(exec): none" in finding.detail
    assert "local, server; no split: this torch traces nothing" in finding.detail
