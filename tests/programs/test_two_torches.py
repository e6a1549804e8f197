"""Two versions of torch: operators are compared when a program connects, and another one is refused by name."""

from __future__ import annotations

import lzma
import os
import pathlib
import subprocess
import types
import zlib
from concurrent.futures import Future
from typing import Any, Dict, Iterator

import pytest
import torch

import edge_offload
from edge_offload.device import connect
from edge_offload.errors import ProtocolError, Unsupported
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.ir.trace import checksums
from edge_offload.ir.trace.calls import BoundOperator
from tests.ir.test_keys import TENSOR
from tests.programs.serving import ENVIRONMENT, FOLDER, Serving

OTHER = os.environ.get("EDGE_OFFLOAD_OTHER_PYTHON", "")


def test_the_same_torch_refuses_nothing() -> None:
    ours = checksums.checksum_table()
    assert len(ours) > 2000
    assert checksums.unpack_table(checksums.pack_table(ours)) == ours
    assert checksums.refused_operators(ours, ours, torch.__version__) == {}
    assert ours["aten::add.Tensor"] == checksums.schema_checksum("aten::add.Tensor")
    assert checksums.schema_checksum("edge::upload") == 0


def test_operators_that_differ_or_are_absent_are_refused_by_name_and_no_others() -> None:
    ours = checksums.checksum_table()
    theirs = dict(ours)
    theirs["aten::relu"] ^= 1
    del theirs["aten::conv2d"]
    theirs["aten::of_the_future"] = 5
    refused = checksums.refused_operators(ours, theirs, "9.9")
    assert sorted(refused) == ["aten::conv2d", "aten::relu"]
    assert "aten::relu" in refused["aten::relu"]
    assert "9.9" in refused["aten::conv2d"]
    assert all(reason.endswith("; use the same torch on both") for reason in refused.values())


def test_only_what_a_call_depends_on_counts() -> None:
    def number(text: str) -> int:
        return zlib.crc32(checksums.canonical_schema(torch._C.parse_schema(text)).encode())

    base = number("aten::f(Tensor self, int n=1, *, bool keep=False) -> Tensor")
    assert number("aten::f(Tensor self, int n=2, *, bool keep=True) -> Tensor") == base
    others = [
        "aten::f(Tensor self, int m=1, *, bool keep=False) -> Tensor",
        "aten::f(Tensor self, float n=1, *, bool keep=False) -> Tensor",
        "aten::f(Tensor self, int n=1, bool keep=False) -> Tensor",
        "aten::f(Tensor self, int n=1, *, bool keep=False, bool more=False) -> Tensor",
        "aten::f(Tensor(a!) self, int n=1, *, bool keep=False) -> Tensor(a!)",
        "aten::f(Tensor self, int n=1, *, bool keep=False) -> Tensor[]",
    ]
    assert base not in map(number, others)
    assert len(set(map(number, others))) == len(others)


#: Of torch 2.1.0, a line for each operator: how many arguments it has, and :func:`checksums.canonical_schema`.
SCHEMAS = pathlib.Path(__file__).with_name("schemas-2.1.0.txt.xz")


def older() -> Dict[str, Any]:
    """By name what a robot with torch 2.1.0 says of its operators: (number of arguments, checksum)."""
    counted = {}
    for line in lzma.decompress(SCHEMAS.read_bytes()).decode().splitlines():
        count, text = line.split(" ", 1)
        counted[text.split("(")[0].rstrip(".")] = (int(count), zlib.crc32(text.encode()) or 1)
    return counted


def test_every_operator_of_torch_2_1_is_equal_or_has_arguments_appended_or_is_refused_by_name() -> None:
    robot, ours = older(), checksums.checksum_table()
    assert len(robot) > 3500
    numbers = {name: number for name, (_, number) in robot.items()}
    prefixes = checksums.prefix_checksums({name: count for name, (count, _) in robot.items()})
    taken = {name: prefixes[name] for name in prefixes if prefixes[name] == numbers[name]}
    refused = checksums.refused_operators(numbers, {**ours, **taken}, torch.__version__)
    for name, (count, number) in robot.items():
        if name in refused:
            assert name in refused[name]
            if name in ours:
                with pytest.raises(Unsupported, match=name.split(".")[0]):
                    checksums.appended_defaults(name, number, count)
        else:
            operator, _, overload = name.partition(".")
            schema = torch._C._get_schema(operator, overload)
            added = checksums.appended_defaults(name, number, count)
            assert len(added) == len(schema.arguments) - count
            assert list(added) == [argument.default_value for argument in schema.arguments[count:]]
    assert len(refused) < 0.05 * len(robot)
    if "aten::scaled_dot_product_attention" in taken:  # has had one argument more since torch 2.5
        count, number = robot["aten::scaled_dot_product_attention"]
        assert checksums.appended_defaults("aten::scaled_dot_product_attention", number, count) == (False,)


def test_a_call_of_an_older_torch_is_taken_with_the_defaults_of_what_was_appended() -> None:
    name, key = "aten::sum.dim_IntList", TENSOR + b"V\x01\0\0\0" + bytes(8) + b"B\0"
    number = checksums.prefix_checksum(name, 3)
    call = BoundOperator(name, key, torch.device("cpu"), schema=number)
    assert call.refused is None
    assert call.arguments[2:] == [False, None]
    other = BoundOperator(name, key, torch.device("cpu"), schema=number ^ 1)
    assert "another one" in str(other.refused)


@pytest.mark.parametrize("supports_older", [True, False])
def test_a_differing_operator_is_sent_with_fewer_arguments(supports_older: bool) -> None:
    ours = checksums.checksum_table()
    theirs = {**ours, "aten::relu": 1, "aten::mm": 1}

    def request(_kind: str, body: Dict[str, Any], **_options: Any) -> Any:
        requested = body.get("older")
        assert requested in (None, {"aten::relu": 1, "aten::mm": 2})
        table = theirs if requested is None or not supports_older else {"aten::relu": ours["aten::relu"], "aten::mm": 0}
        done: Any = Future()
        done.set_result(types.SimpleNamespace(buffers=[checksums.pack_table(table)]))
        return done

    client: Any = types.SimpleNamespace(welcome={"fingerprint": {"torch": "9.9"}}, request=request)
    assert sorted(connect.other_operators(client)) == (["aten::mm"] if supports_older else ["aten::mm", "aten::relu"])


@pytest.mark.parametrize("question", [[], dict.fromkeys(range(checksums.MAX_NAMES + 1), 1)])
def test_malformed_questions_for_older_operators_are_refused(question: Any) -> None:
    with pytest.raises(ProtocolError):
        checksums.prefix_checksums(question)
    assert checksums.prefix_checksums({"aten::relu": "x", "aten::nothing": 1, 7: 7}) == {}


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93\x01\x02\x03", checksums.pack_table({"aten::a": 1})[:-1], b"\x81\x01\x01"]
)
def test_a_malformed_table_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        checksums.unpack_table(data)


def test_a_program_is_notified_of_another_torch_on_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    theirs = {**fingerprint_of("cpu"), "torch": "1.13.0", "torch_build": "another"}
    connect.report_differences({"fingerprint": theirs})
    (line,) = capsys.readouterr().err.splitlines()
    assert f"torch=={str(torch.__version__).split('+')[0]} on the server" in line
    connect.report_differences({"fingerprint": {**theirs, "threads": 77}})
    assert "77 there" in capsys.readouterr().err
    connect.report_differences({"fingerprint": {**fingerprint_of("cpu"), "threads": 3}}, threads=3)
    connect.report_differences({"fingerprint": fingerprint_of("cpu")})
    assert capsys.readouterr().err == ""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    made = Serving(tmp_path_factory.mktemp("serving"))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.skipif(not OTHER, reason="EDGE_OFFLOAD_OTHER_PYTHON names no Python with another torch")
def test_another_torch_on_the_robot(serving: Serving) -> None:
    """The same program, on the robot's torch alone and on the server's: equal within 2e-5 of the largest value."""
    source = str(pathlib.Path(edge_offload.__file__).parents[1])
    environment = {**ENVIRONMENT, "PYTHONPATH": source}
    program = [OTHER, str(FOLDER / "versions_app.py")]

    def run(*command: str) -> Any:
        return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)

    local_run = run(*program)
    assert local_run.returncode == 0, local_run.stderr[-3000:]
    launcher = [OTHER, "-m", "edge_offload.cli", "exec", "--server", serving.address, "--keys", str(serving.keys)]
    remote_run = run(*launcher, "--wait", "60", "--", *program)
    assert remote_run.returncode == 0, remote_run.stderr[-3000:]
    assert "pip install torch==" in remote_run.stderr
    local, remote = ([line.split() for line in done.stdout.splitlines()] for done in (local_run, remote_run))
    assert [line[:2] for line in local] == [line[:2] for line in remote]
    assert len(local) >= 6
    for (name, _, *expected), (_, _, *counted) in zip(local, remote):
        scale = max(abs(float(value)) for value in expected)
        for one, other in zip(expected, counted):
            assert abs(float(one) - float(other)) <= 2e-5 * scale, name
