"""The list of events: what a person would have noted down, once each."""

from __future__ import annotations

from edge_offload.dashboard.digest import Digest
from tests.dashboard import made_up


def digest_of(records, finish=True):
    digest = Digest()
    events = [event for record in records for event in digest.digest_record(record)]
    return [(event["level"], event["what"], event["text"]) for event in events + (digest.finish() if finish else [])]


def test_an_outage_reads_like_a_story():
    events = digest_of(made_up.run(60))
    texts = [what for _, what, _ in events]
    assert ("info", "mode", "server → local: the server has not answered for 1.0 s") in events
    assert ("error", "link", "tcp://127.0.0.1:5701 does not answer") in events
    assert ("ok", "link", "tcp://127.0.0.1:5701 answers") in events
    assert ("warn", "fallback", "frames fell back: the server does not answer") in events
    assert ("warn", "node", "kapao_node: the server does not answer") in events
    assert ("ok", "node", "kapao_node: running") in events
    # 160 frames fell back: they are one event when it begins and one when it is over
    assert texts.count("fallback") == 2
    assert [text for _, what, text in events if what == "fallback"][1].startswith("160 frames fell back in ")
    assert len(events) < 20


def test_a_fault_that_comes_and_goes_is_one_event():
    frames = [made_up.latency(n / 10, deadline_met=bool(n % 2)) for n in range(200)]
    assert [text for _, what, text in digest_of(frames) if what == "deadline"] == [
        "frames missed their deadline: the deadline is 200 ms",
        "100 frames missed their deadline in 19.8 s: the deadline is 200 ms",
    ]


def test_a_streak_that_still_lasts_at_the_end_is_counted():
    frames = [made_up.latency(n / 10, local=True, deadline_s=0.0) for n in range(7)]
    assert "7 frames fell back in 0.6 s: the server does not answer" in [text for *_, text in digest_of(frames)]
    assert not any("7 frames" in text for *_, text in digest_of(frames, finish=False))


def test_silence_and_unusable_frames_are_reported():
    slow = made_up.latency(20.0, total_s=10.8)
    early = [made_up.latency(0.0), made_up.latency(9.1, total_s=0.1)]
    frames = [*early, slow, made_up.latency(20.1, error="not an image")]
    events = digest_of(frames)
    assert [text for _, what, text in events if what == "frames"] == ["no frame for 9.0 s"]
    assert ("error", "frame", "frames could not be used: not an image") in events


def test_a_quiet_run_reports_little():
    frames = [made_up.mode(0.0, "server", "fixed", "set")] + [made_up.latency(n / 10) for n in range(100)]
    assert digest_of(frames) == [("info", "mode", "server: set")]


def test_the_server_reports_how_many_it_refused():
    events = digest_of(
        [made_up.server(0.0, 0.1), made_up.server(1.0, 0.9, refused=3), made_up.server(2.0, 0.9, refused=3)]
    )
    assert [text for *_, text in events] == ["tcp://127.0.0.1:5700 is ready", "3 requests refused"]


def test_reasons_that_differ_in_a_duration_are_the_same_reason():
    frames = [made_up.latency(n / 10, fallback_reason=f"no answer for {n / 10:.2f} s") for n in range(5)]
    assert [text for _, what, text in digest_of(frames) if what == "fallback"] == [
        "frames fell back: no answer for 0.00 s",
        "5 frames fell back in 0.4 s: no answer for 0.00 s",
    ]
