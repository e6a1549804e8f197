"""The report: its figures are those of the run, and the page is complete in itself."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from edge_offload import records
from edge_offload.cli import main
from edge_offload.errors import BadInput
from edge_offload.report.columns import RunColumns, thin_samples
from edge_offload.report.page import MAX_POINTS, plot_data, render_page
from edge_offload.report.summary import _compute_shares, summarise_run
from edge_offload.timing import STAGES
from tests.dashboard import made_up


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "walk.jsonl"
    made_up.write(path, made_up.run(60))
    return path


def test_the_figures_are_those_of_the_run(run_file, tmp_path, capsys):
    assert main(["report", str(run_file), "--json", str(tmp_path / "figures.json")]) == 0
    record = json.loads((tmp_path / "figures.json").read_text())
    records.validate("report", record)
    made = [one for one in made_up.run(60) if one["kind"] == "latency"]
    local = [one for one in made if one["mode"] == "local"]
    assert record["frames"] == len(made)
    assert record["by_mode"]["local"]["frames"] == record["all"]["fell_back"] == len(local)
    assert record["by_mode"]["local"]["late"] == sum(not one["deadline_met"] for one in local)
    assert record["all"]["latency_s"]["p99"] == pytest.approx(np.percentile([one["total_s"] for one in made], 99))
    assert record["by_mode"]["server"]["energy_j"] == pytest.approx(
        np.mean([one["energy_j"] for one in made if one["mode"] == "server"])
    )
    assert record["by_mode"]["server"]["bytes_up"] == 61234
    assert record["fallbacks"] == {"the server does not answer": len(local)}
    assert (record["mode_switches"], record["switches_with_rate"]) == (2, 1)
    assert record["bandwidth"]["down_share"] == pytest.approx(1 / 3, abs=0.03)
    assert record["link"] == "wifi_93mbps"
    text = (tmp_path / "walk.html").read_text()
    for cell in (f"<td>{len(local)}</td>", "<td>61.2 kB</td>", f"{len(made)}"):
        assert cell in text
    assert "local" in capsys.readouterr().out


def test_the_time_before_the_first_connection_is_no_outage(tmp_path):
    run = made_up.run(60)
    first_s = run[0]["t_s"]
    made_up.write(tmp_path / "late.jsonl", [made_up.bandwidth(first_s - n, False) for n in range(60, 0, -1)] + run)
    assert main(["report", str(tmp_path / "late.jsonl"), "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["bandwidth"]["down_share"] == pytest.approx(1 / 3, abs=0.03)


def test_the_page_requests_no_external_resource(run_file, tmp_path):
    main(["report", str(run_file), "-o", str(tmp_path / "page.html")])
    text = (tmp_path / "page.html").read_text()
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "url(" not in text.split("</style>")[0]
    assert "default-src 'none'" in text
    assert "unsafe" not in text.split("</head>")[0]
    assert len(text) < 400_000


@pytest.mark.process
def test_it_draws_in_a_real_browser_with_light_and_dark_background(browser, run_file, tmp_path):
    page = tmp_path / "page.html"
    main(["report", str(run_file), "-o", str(page), "--title", "walk <1> & </script>"])
    background = {}
    for dark in (False, True):
        tab = browser.tab(page.as_uri(), dark)
        tab.until("document.querySelectorAll('#events li').length > 8")
        assert tab.text("h1") == "walk <1> & </script>"
        assert tab.inked("#chart-latency canvas", "#e69f00") > 500
        assert tab.inked("#ribbon canvas", "#009e73") > 500
        assert tab.inked("#chart-share canvas", "#009e73") > 50
        assert "160 frames fell back" in tab.text("#events")
        background[dark] = tab.value("getComputedStyle(document.body).backgroundColor")
        assert tab.value("performance.getEntriesByType('resource').length") == 0
        assert {url.split(":")[0] for url in tab.requested} <= {"file", "data"}
        assert tab.complaints == []
        tab.close()
    assert background[False] != background[True]


@pytest.mark.process
def test_origins_of_results_have_a_row_and_are_counted_alongside_inferences(browser, tmp_path):
    origins = ["none", "carried", "carried", "fresh"] * 15
    given = [made_up.people(made_up.BEGIN_S + 0.5 + place, origin) for place, origin in enumerate(origins)]
    made = [record for record in made_up.run() if record["kind"] != "people"] + given
    made_up.write(tmp_path / "run.jsonl", sorted(made, key=lambda record: record["t_s"]))
    page, figures = tmp_path / "run.html", tmp_path / "figures.json"
    assert main(["report", str(tmp_path / "run.jsonl"), "-o", str(page), "--json", str(figures)]) == 0
    record = json.loads(figures.read_text(encoding="utf-8"))
    assert (record["frames"], record["results_by_origin"]) == (480, {"carried": 30, "none": 15, "fresh": 15})
    tab = browser.tab(page.as_uri())
    tab.until("document.querySelectorAll('#events li').length > 8")
    assert tab.inked("#ribbon canvas", "#56b4e9") > 500
    assert "carried" in tab.text("#ribbon")
    assert "60" in tab.text(".tiles .tile")
    assert tab.complaints == []
    tab.close()


#: Tiles whose text is wider than they are, and tiles that have a row to themselves beside free room.
CUT_TILES = """[...document.querySelectorAll('.tile, .tile p')]
  .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent).join(' | ')"""
LONE_TILES = """(() => {
  const tiles = [...document.querySelectorAll('.tile')], all = document.querySelector('.tiles').clientWidth;
  const row = one => tiles.filter(other => other.offsetTop === one.offsetTop);
  return tiles.filter(one => row(one).length === 1 && one.offsetWidth < all - 2).map(one => one.textContent).join();
})()"""


@pytest.mark.process
@pytest.mark.parametrize("carried", [False, True])
def test_no_tile_is_cut_or_single_in_its_row(browser, tmp_path, carried):
    modes = ("server", "replay", "split", "local", "lazy")
    made = [
        {**record, "mode": modes[place % 5]} if record["kind"] == "latency" else record
        for place, record in enumerate(made_up.run())
        if carried or record["kind"] != "people"
    ]
    if carried:
        made += [made_up.people(made_up.BEGIN_S + 0.5 + place, "carried") for place in range(30)]
    made_up.write(tmp_path / "run.jsonl", sorted(made, key=lambda record: record["t_s"]))
    assert main(["report", str(tmp_path / "run.jsonl")]) == 0
    tab = browser.tab((tmp_path / "run.html").as_uri())
    tab.until("document.querySelectorAll('.tile').length > 5")
    for width in (1920, 1440, 1280, 1024, 800, 390):
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        tab.until(f"document.documentElement.clientWidth === {width}")
        assert (width, tab.value(CUT_TILES), tab.value(LONE_TILES)) == (width, "", "")
    tab.close()


@pytest.mark.process
def test_scenes_have_a_separate_row_with_and_without_people(browser, tmp_path):
    scenes = [made_up.scene(made_up.BEGIN_S + 0.2 + place, "local" if place % 4 else "carried") for place in range(40)]
    for people in (True, False):
        scenes_and_others = [record for record in made_up.run() if record["kind"] != "people"]
        given = [made_up.people(made_up.BEGIN_S + 0.5 + place, "carried") for place in range(30)] if people else []
        made_up.write(
            tmp_path / "run.jsonl", sorted([*scenes_and_others, *given, *scenes], key=lambda record: record["t_s"])
        )
        page, figures = tmp_path / "run.html", tmp_path / "figures.json"
        assert main(["report", str(tmp_path / "run.jsonl"), "-o", str(page), "--json", str(figures)]) == 0
        record = json.loads(figures.read_text(encoding="utf-8"))
        assert record["results_by_origin"] == {"carried": 10 + 30 * people, "local": 30}
        both = {"people": {"carried": 30}, "scene": {"local": 30, "carried": 10}}
        assert record.get("results_by_task") == (both if people else None)
        tab = browser.tab(page.as_uri())
        tab.until("document.querySelectorAll('#events li').length > 8")
        assert tab.value("document.querySelector('#ribbon canvas').clientHeight") == 24 * (3 + people) - 2
        assert ("people carried 30; scene local 30" in tab.text(".tiles")) == people
        assert tab.inked("#ribbon canvas", "#e69f00") > 500
        assert tab.complaints == []
        tab.close()


@pytest.mark.process
def test_a_drag_shows_a_part_of_the_run_in_every_plot(browser, run_file, tmp_path):
    page = tmp_path / "page.html"
    main(["report", str(run_file), "-o", str(page)])
    tab = browser.tab(page.as_uri())
    tab.until("document.querySelectorAll('#events li').length > 8")
    orange = tab.inked("#ribbon canvas", "#e69f00")
    x0, top, width = tab.value(
        "(() => { const r = document.querySelector('#chart-latency .u-over').getBoundingClientRect();"
        " return [r.left, r.top, r.width]; })()"
    )
    # the middle third has no link: there everything ran on the robot
    for kind, share in (("mousePressed", 0.4), ("mouseMoved", 0.5), ("mouseReleased", 0.6)):
        spot = {"x": x0 + share * width, "y": top + 50}
        tab.call("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **spot)
    tab.until("document.querySelector('#ribbon').textContent === 'local'", "the part that was chosen")
    assert tab.inked("#ribbon canvas", "#e69f00") > 2 * orange
    assert tab.complaints == []
    tab.close()


@pytest.mark.process
def test_texts_of_the_file_are_never_markup(browser, tmp_path):
    attack = "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>"
    made = [made_up.mode(0.0, "server", "auto", attack), made_up.latency(1.0, fallback_reason=attack, model=attack)]
    made_up.write(tmp_path / "run.jsonl", made)
    assert main(["report", str(tmp_path / "run.jsonl"), "--title", attack]) == 0
    tab = browser.tab((tmp_path / "run.html").as_uri())
    tab.until("document.querySelectorAll('#events li').length === 2")
    assert attack in tab.text("#fallbacks")
    assert tab.value("window.broken === undefined && document.images.length === 0")
    assert tab.complaints == []
    tab.close()


def test_a_long_run_is_thinned_and_no_outlier_is_lost():
    dice = np.random.default_rng(3)
    count = 50_000
    total = dice.uniform(0.05, 0.1, count)
    outliers = dice.choice(count, 40, replace=False)
    total[outliers] = 3.0 + np.arange(40) / 100
    run = RunColumns().add_records(made_up.latency(n / 10, total_s=float(value)) for n, value in enumerate(total))
    drawn = plot_data(run)
    assert drawn["frames"] == count
    assert len(drawn["latency"]["t"]) <= MAX_POINTS
    # a slice may hold two of them, which costs one
    assert len(set(np.round(total[outliers], 6)) & set(drawn["latency"]["total"])) >= 38
    assert max(drawn["latency"]["total"]) == pytest.approx(total.max(), abs=1e-6)
    # the typical frame is still typical
    assert np.median(drawn["latency"]["total"]) == pytest.approx(np.median(total), rel=0.25)
    assert drawn["latency"]["t"] == sorted(drawn["latency"]["t"])
    assert len(render_page(run, summarise_run(run), "long")) < 2_000_000


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_thinning_preserves_few_samples(count):
    assert list(thin_samples(np.arange(count), np.ones(count), 10)) == list(range(count))


@pytest.mark.process
def test_a_single_frame_and_nothing_else_is_a_run(browser, tmp_path):
    frame = made_up.latency(5.0, energy_j=None, deadline_s=0.0)
    for key in ("bytes_up", "round_trips", "model", "fallback_reason", "energy_source", "deadline_met"):
        frame.pop(key)
    made_up.write(tmp_path / "run.jsonl", [frame])
    assert main(["report", str(tmp_path / "run.jsonl")]) == 0
    tab = browser.tab((tmp_path / "run.html").as_uri())
    tab.until("document.querySelector('#chart-power .empty').textContent === 'not in this file'")
    assert tab.complaints == []
    tab.close()


def test_without_frames_no_report_is_written(tmp_path, capsys):
    made_up.write(tmp_path / "run.jsonl", [made_up.power(1.0, 4.0, 4.0)])
    assert main(["report", str(tmp_path / "run.jsonl")]) == 1
    assert "holds no frame with a result; record offload/latency" in capsys.readouterr().err
    assert not (tmp_path / "run.html").exists()
    with pytest.raises(BadInput):
        summarise_run(RunColumns().add_records([made_up.latency(1.0, error="not an image")]))


def test_the_run_itself_is_never_overwritten(run_file, capsys):
    before = run_file.read_bytes()
    assert main(["report", str(run_file), "-o", str(run_file)]) == 1
    assert run_file.read_bytes() == before
    assert main(["report", str(run_file), "-o", str(run_file / "page.html")]) == 1
    assert main(["report", str(run_file.parent / "absent.jsonl")]) == 1
    assert "no file" in capsys.readouterr().err


def test_lines_that_are_omitted_are_reported_on_the_page(run_file, capsys):
    run_file.write_text(run_file.read_text() + '{"kind": "latency", "t_s"')
    assert main(["report", str(run_file)]) == 0
    assert "1 lines of the file hold no record" in capsys.readouterr().out
    assert "hold no record and are left out: line " in run_file.with_suffix(".html").read_text()


def test_the_report_shows_when_both_sides_compute_and_when_each_is_idle() -> None:
    """Stages are sums: 70 and 60 ms in a frame of 100 overlap by 30 at least."""
    stages = {stage: np.zeros(2) for stage in STAGES}
    stages["compute_robot"], stages["compute_server"] = np.array([0.06, 0.2]), np.array([0.06, 0.0])
    stages["encode"] = np.array([0.01, 0.0])
    unknown = np.full(2, np.nan)
    shares = _compute_shares(stages, np.array([0.1, 0.2]), unknown)
    assert shares == pytest.approx({"overlap_ratio": 0.15, "idle_robot": 0.15, "idle_server": 0.7})
    with_overlap = _compute_shares(stages, np.array([0.1, 0.2]), np.array([0.5, np.nan]))
    assert with_overlap["overlap_ratio"] == pytest.approx(0.25), "a frame that told it is believed"


def test_a_run_of_split_frames_is_reported_with_its_overlap() -> None:
    shares = {"overlap_ratio": 0.25, "idle_robot": 0.1, "idle_server": 0.2}
    with_overlap = [made_up.latency(float(n), mode="split", **shares) for n in range(4)]
    old = [made_up.latency(4.0 + n, mode="split") for n in range(4)]
    figures = summarise_run(RunColumns().add_records([*with_overlap, *old]))["by_mode"]["split"]
    assert figures["overlap_ratio"] == pytest.approx(0.125)
