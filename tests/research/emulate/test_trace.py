"""Traces: files of any origin, arithmetic that adds up, and synthetic ones that are always the same."""

import os
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload import cli
from edge_offload.errors import BadInput
from edge_offload_research.emulate import trace as traces
from edge_offload_research.emulate.trace import BYTES_PER_MBIT, Trace, load_trace, named_link, named_links

rates = st.lists(st.sampled_from([0.0, 1.0, 1e3, 1.1625e7]), min_size=1, max_size=6).filter(any)


@given(rates=rates, start=st.floats(0, 50), size=st.floats(1, 1e8))
@settings(max_examples=300, deadline=None)
def test_finish_is_when_the_bytes_have_passed(rates, start, size):
    trace = Trace(tuple(range(len(rates))), tuple(rates), float(len(rates)))
    end = trace.finish_time(start, size)
    assert end >= start
    passed = trace.bytes_until(end) - trace.bytes_until(start)
    assert passed == pytest.approx(size, rel=1e-5, abs=max(rates) * 1e-9 * max(1.0, end) + 1e-3)


def test_constant_and_outage():
    assert Trace.constant_trace(1000.0).finish_time(5.0, 500) == pytest.approx(5.5)
    assert Trace.constant_trace(0.0).finish_time(5.0, 1) == float("inf")
    half = Trace((0.0, 1.0), (1000.0, 0.0), 2.0)
    assert half.finish_time(0.5, 1000) == pytest.approx(2.5), "half before the outage, half after"
    assert half.mean_rate() == 500.0


@pytest.mark.parametrize(("column", "unit"), [("MBps", 1e6), ("Mbps", 125e3), ("bytes_per_s", 1.0)])
def test_columns(tmp_path, column, unit):
    path = tmp_path / "t.csv"
    path.write_text(f"t_s,other,{column},rtt_ms\n10.0,x,2,4\n10.5,y,4,6\n")
    trace = load_trace(path)
    assert trace.starts_s == (0.0, 0.5)
    assert trace.period_s == 1.0
    assert trace.rate_at(0.2) == 2 * unit
    assert trace.rate_at(1.7) == 4 * unit, "it repeats"
    assert trace.delay_at(0.2) == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "needs columns"),
        ("t_s,speed\n0,1\n", "needs columns"),
        ("t_s,Mbps\n", "no rows"),
        ("t_s,Mbps\n0,fast\n", "line 2"),
        ("t_s,Mbps\n0,1\n1\n", "line 3"),
        ("t_s,Mbps\n1,1\n0,1\n", "ascend"),
        ("t_s,Mbps\n0,-1\n", "negative"),
        ("t_s,Mbps\n0,nan\n", "finite"),
        ("t_s,Mbps\n0,inf\n", "finite"),
    ],
)
def test_bad_files_are_named(tmp_path, text, complaint):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=complaint) as error:
        load_trace(path)
    assert "bad.csv" in str(error.value)


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(BadInput, match="cannot read"):
        load_trace(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(os.urandom(100) + b"\xff\xfe")
    with pytest.raises(BadInput):
        load_trace(tmp_path / "binary.csv")


def test_the_command_recreates_the_committed_traces(tmp_path):
    assert cli.main(["link", "make-traces", str(tmp_path)]) == 0
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in traces.TRACE_DIRECTORY.glob("*.csv"))
    for name in made:
        assert (tmp_path / name).read_bytes() == (traces.TRACE_DIRECTORY / name).read_bytes()


def test_named_links_have_the_papers_means():
    means = {name: named_link(name).up.mean_rate() / BYTES_PER_MBIT for name in named_links()}
    assert means["wifi_93mbps"] == pytest.approx(93.0)
    assert means["wifi_73mbps"] == pytest.approx(73.0)
    assert means["wifi_indoors"] == pytest.approx(93.0, abs=0.05)
    assert means["wifi_outdoors"] == pytest.approx(73.0, abs=0.05)
    indoors, outdoors = (np.array(named_link(f"wifi_{place}").up.bytes_per_s) for place in ("indoors", "outdoors"))
    assert len(indoors) == len(outdoors) == 600
    assert outdoors.min() < 2 * BYTES_PER_MBIT < indoors.min()
    assert outdoors.std() > indoors.std(), "outdoors is less stable"
    rtts = {name: named_link(name).up_delay_s + named_link(name).down_delay_s for name in means}
    others = {"lte": 32e-3, "5g_mmwave": 14e-3, "wifi_interfered": 10e-3}
    assert rtts == pytest.approx({name: others.get(name, 2.6e-3) for name in means})
    lte = named_link("lte")
    for trace, mean, deviation in ((lte.up, 44.0, 8.0), (lte.down, 110.0, 17.0)):
        rates = np.array(trace.bytes_per_s) / BYTES_PER_MBIT
        assert (rates.mean(), rates.std()) == pytest.approx((mean, deviation), rel=0.001)
    with pytest.raises(BadInput, match="wifi_93mbps"):
        named_link("5g")


def test_a_measured_trace_can_be_used():
    path = pathlib.Path(__file__).parents[4] / "shared" / "data" / "lopinfer" / "bandwidth_indoors.csv"
    if not path.exists():
        pytest.skip("the measured indoor trace is not on this machine")
    trace = load_trace(path)
    assert len(trace.starts_s) > 4000
    assert 5e6 < trace.mean_rate() < 20e6
