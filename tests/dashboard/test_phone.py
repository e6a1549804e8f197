"""Dashboard and report on a phone, 390 px wide: nothing is cut off, tables scroll by themselves."""

from __future__ import annotations

import os
import pathlib

import pytest

from edge_offload.cli import main
from edge_offload.errors import Unsupported
from tests.dashboard import made_up
from tests.dashboard.browser import Browser

pytestmark = pytest.mark.process

WIDTH = 390
SIDEWAYS = "document.documentElement.scrollWidth"
#: Texts that are wider than their place; tables have a place that scrolls.
CUT = (
    "[...document.querySelectorAll('.tile .big, .tile .small, .event-list .text, h1, .notice')]"
    ".filter(one => one.offsetParent && one.scrollWidth > one.clientWidth + 1).map(one => one.textContent).join(' | ')"
)
LOOSE_TABLES = "[...document.querySelectorAll('table.figures')].filter(one => !one.closest('.scroll')).length"


@pytest.fixture(scope="module")
def phone():
    try:
        browser = Browser(width=WIDTH, height=844)
    except Unsupported as error:
        pytest.skip(str(error))
    yield browser
    browser.close()


def show(tab, name):
    """Leave a picture where a person asks for it: EDGE_OFFLOAD_PICTURES=FOLDER."""
    folder = os.environ.get("EDGE_OFFLOAD_PICTURES")
    if folder:
        tab.picture(pathlib.Path(folder) / name)


def test_a_report_fits(phone, tmp_path):
    run = tmp_path / "walk.jsonl"
    made_up.write(run, made_up.run())
    assert main(["report", str(run)]) == 0
    tab = phone.tab(run.with_suffix(".html").as_uri())
    tab.until("document.querySelectorAll('.u-over').length > 2", "plots")
    show(tab, "report-phone.png")
    assert tab.value(SIDEWAYS) <= WIDTH
    assert tab.value(CUT) == ""
    assert tab.value(LOOSE_TABLES) == 0


def test_the_dashboard_fits(phone, history, serve):
    for record in made_up.run():
        history.put(record)
    tab = phone.tab(serve().url)
    tab.until("document.querySelectorAll('.event-list li').length > 2", "events")
    show(tab, "dashboard-phone.png")
    assert tab.value(SIDEWAYS) <= WIDTH
    assert tab.value(CUT) == ""
