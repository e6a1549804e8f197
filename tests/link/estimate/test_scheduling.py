"""A busy machine: what threads waited for a processor is told apart from what the link took."""

import math
import random

import pytest

from edge_offload.link.estimate.estimator import SAMPLE_BYTES, LinkEstimator, RateFilter, Transfer
from edge_offload.link.estimate.scheduling import HISTORY_S, WAITED, ThreadCounts, Waits, describe_waits
from edge_offload_research.emulate.trace import BYTES_PER_MBIT, Trace

MB = 1e6
DELAY_S = 1.3e-3
MBPS_93 = 93 * BYTES_PER_MBIT


class Kernel:
    """Files as the kernel writes them: a thread of Python's, and what else is asked for."""

    def __init__(self, path, main_thread):
        self.path = path
        self.thread(main_thread, "python3")

    def thread(self, number, name, waited_s=0.0, turns=0, state="S"):
        folder = self.path / "self" / "task" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "schedstat").write_text(f"123456 {round(waited_s * 1e9)} {turns}\n")
        (folder / "stat").write_text(f"{number} ({name}) {state} 1 2 3\n")

    def stolen(self, ticks):
        (self.path / "stat").write_text(f"cpu  1 2 3 4 5 6 7 {ticks} 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setattr("threading.get_native_id", lambda: 100)
    return Kernel(tmp_path, 100)


def test_waiting_of_the_threads_that_move_bytes_and_steal_are_added_up(kernel):
    kernel.thread(101, "ZMQbg/IO/0", 3.0, 7)
    kernel.thread(102, "torch", 50.0, 9)
    kernel.stolen(40)
    counts = ThreadCounts(kernel.path, cores=2)
    counts.find_threads()
    assert counts.count_total(0.0) == (0.0, 0), "what was before is not counted"
    kernel.thread(100, "python3", 0.25, 2)
    kernel.thread(101, "ZMQbg/IO/0", 3.5, 10)
    kernel.thread(102, "torch", 90.0, 99)
    kernel.stolen(60)
    assert counts.count_total(1.0) == (pytest.approx(0.25 + 0.5 + 0.1), 5), "0.2 s of two cores were stolen"
    assert counts.to_body(1.0)[WAITED] == [pytest.approx(0.85), 5]


def test_threads_that_start_or_end_do_not_change_the_waiting_time(kernel):
    kernel.thread(101, "ZMQbg/IO/0", 3.0, 7)
    counts = ThreadCounts(kernel.path)
    counts.find_threads()
    kernel.thread(101, "ZMQbg/IO/0", 3.5, 8)
    assert counts.count_total(1.0) == (pytest.approx(0.5), 1)
    for name in ("comm", "schedstat", "stat"):
        (kernel.path / "self" / "task" / "101" / name).unlink()
    assert counts.count_total(2.0) == (pytest.approx(0.5), 1)
    kernel.thread(103, "ZMQbg/IO/0", 9.0, 4)
    counts.find_threads()
    assert counts.count_total(3.0) == (pytest.approx(0.5), 1)


def test_a_kernel_that_does_not_count_gives_no_waiting_time(tmp_path):
    counts = ThreadCounts(tmp_path)
    counts.find_threads()
    assert counts.count_total(5.0) == (0.0, 0)
    assert not counts.is_stuck()


def test_a_thread_with_something_to_do_that_does_not_run_is_stuck(kernel):
    kernel.thread(100, "python3", state="R")
    kernel.thread(101, "ZMQbg/IO/0")
    counts = ThreadCounts(kernel.path)
    counts.find_threads()
    assert not counts.is_stuck(), "this thread itself runs, of course"
    kernel.thread(101, "ZMQbg/IO/0", state="R")
    assert counts.is_stuck()


def test_waits_between_two_times_are_bounded_by_the_samples_around_them():
    waits = Waits()
    for now, seconds in ((1.0, 0.0), (2.0, 0.1), (3.0, 0.4), (4.0, 0.4)):
        waits.add_sample(now, seconds, round(now))
    assert waits.waited_between(2.2, 2.8) == pytest.approx(0.3)
    assert waits.waited_between(1.5, 2.0) == pytest.approx(0.1)
    assert waits.waited_between(3.5, 9.0) == 0.0
    assert waits.waited_between(5.0, 4.0) == 0.0
    for step in range(1000):
        waits.add_sample(4.0 + step * 0.1, 0.4, 4 + step)
    assert waits.waited_between(0.0, 1e3) == 0.0
    assert len(waits._samples) < 25 * HISTORY_S, "old looks are dropped"


def test_the_mean_wait_for_a_turn_follows_what_the_machine_does_now():
    waits = Waits()
    for step in range(100):
        waits.add_sample(step * 0.1, step * 0.02, step * 2)
    assert waits.typical_s == pytest.approx(0.01)
    for step in range(100, 200):
        waits.add_sample(step * 0.1, 2.0, step * 2)
    assert waits.typical_s < 0.001
    assert describe_waits(0.012, 0.0) == (
        "busy: scheduling delay 12 ms on the robot; it is told apart from the link, forecasts scatter more"
    )
    assert describe_waits(0.001, 0.0) == "not busy"


@pytest.mark.parametrize(
    "reported",
    [None, 3, [], [1.0], [1.0, 2.0], [math.nan, 1], [-1.0, 1], [math.inf, 1], [1.0, -1], [1.0, True], ["1", 1]],
)
def test_reports_of_a_peer_are_used_only_if_plausible(reported):
    waits, body = Waits(), {"a": 1, WAITED: reported}
    waits.take_reported(1.0, body)
    assert not waits._samples
    assert body == {"a": 1}


def test_a_server_that_was_restarted_counts_from_the_beginning():
    waits = Waits()
    waits.take_reported(1.0, {WAITED: [5.0, 100]})
    waits.take_reported(2.0, {WAITED: [0.5, 10]})
    waits.take_reported(3.0, {WAITED: [0.75, 20]})
    assert waits.waited_between(0.0, 4.0) == pytest.approx(0.25)


# ---------------------------------------------------------------------- the estimate


def steady(rates, until_s=2.0, size=600e3, rate=MBPS_93):
    for number in range(round(until_s * 10)):
        rates.observe_transfer(0.1 * number, size, size / rate, 1e-3)


def test_time_explained_by_waiting_is_not_attributed_to_the_link():
    rates = RateFilter()
    steady(rates)
    for number in range(10):
        assert rates.observe_transfer(2.0 + 0.1 * number, 600e3, 0.3, 1e-3, lag_s=0.28)
    assert rates.bytes_per_s > 0.5 * MBPS_93
    assert rates.log_error(3.0) < 0.5, "it was looked at: what is known does not grow old"


def test_a_true_fall_is_seen_through_the_waiting():
    rates = RateFilter()
    steady(rates)
    for number in range(3):
        rates.observe_transfer(2.0 + 0.6 * number, 600e3, 600e3 / (0.1 * MBPS_93) + 0.1, 1e-3, lag_s=0.2)
    assert rates.bytes_per_s == pytest.approx(0.1 * MBPS_93, rel=0.5)


def test_a_rise_needs_no_benefit_of_the_doubt():
    rates = RateFilter()
    steady(rates, rate=0.1 * MBPS_93)
    for number in range(2):
        rates.observe_transfer(2.0 + number, 600e3, 600e3 / MBPS_93, 1e-3, lag_s=0.02)
    assert rates.bytes_per_s > 0.5 * MBPS_93


def test_constant_waiting_counts_as_no_time():
    """Pieces of a split while both ends compute: threads may have waited all the while, and each piece was on time."""
    rates, chance = RateFilter(), random.Random(1)
    for number in range(1000):
        busy_s = 64e3 / MBPS_93 * chance.uniform(0.96, 1.04)
        rates.observe_transfer(0.02 * number, 64e3, busy_s, 2.8e-3, lag_s=chance.uniform(0.7, 2.0) * busy_s)
    assert rates.bytes_per_s == pytest.approx(MBPS_93, rel=0.06)


def test_a_first_sample_that_may_be_waiting_is_believed_with_doubt():
    rates = RateFilter()
    assert rates.observe_transfer(0.0, 600e3, 0.3, 1e-3, lag_s=0.29)
    assert rates.log_error(0.0) > 1.0
    rates.observe_transfer(0.1, 600e3, 600e3 / MBPS_93, 1e-3)
    assert rates.bytes_per_s == pytest.approx(MBPS_93, rel=0.1), "a better one is believed at once"


def test_a_late_small_message_is_no_evidence_about_the_link():
    """A question for the server's load, 300 bytes, that took a quarter of a second on a busy machine: not 1 kB/s."""
    estimator = LinkEstimator()
    estimator.round_trip(0.0, 2 * DELAY_S)
    for number in range(10):
        t = 0.1 * number
        received, back = t + 0.052 + DELAY_S, t + 0.07
        estimator.add_transfer(Transfer(t, t, received, received + 0.005, back, 1e-4, 600_000, 17_000))
    before = estimator.make_reading(1.0)
    for t in (1.0, 2.0, 3.0):
        estimator.add_transfer(Transfer(t, t, t + 0.3, t + 0.31, t + 0.7, 1e-4, 300, SAMPLE_BYTES - 1))
    after = estimator.make_reading(3.7)
    assert after.uplink == before.uplink
    assert after.downlink == before.downlink


def test_an_upload_whose_sender_does_not_get_a_processor_is_no_fall_of_the_link():
    estimator = LinkEstimator()
    for number in range(20):
        estimator.sample(0.1 * number, 600e3, 600e3 / MBPS_93, 0, 0, 1e-4)
    before = estimator.make_reading(2.0).uplink
    for step in range(20):
        estimator.add_progress(2.0 + 0.05 * step, 600_000, 10_000, waited=lambda begin, end: end - begin)
    assert estimator.make_reading(3.0).uplink == before
    for step in range(20):
        estimator.add_progress(3.0 + 0.05 * step, 600_000, 10_000, waited=lambda begin, end: 0.02)
    assert estimator.make_reading(4.0).uplink < 0.1 * before, "the sender runs, and nothing passes"


class BusyRobot:
    """Frames over a trace in virtual time, timed by threads that wait for a processor; most of it is counted."""

    def __init__(self, trace, seed):
        self.trace, self.random, self.t = trace, random.Random(seed), 0.0
        self.estimator = LinkEstimator()
        self.estimator.round_trip(0.0, 2 * DELAY_S)
        self.estimator.late_s = 0.02

    def wait(self):
        """What a way takes longer, and what the ends count: more than that, or a little less."""
        real_s = self.random.choice([0.0, 0.0, 0.005, 0.02, 0.1, 0.3]) * self.random.random()
        return real_s, real_s * self.random.uniform(0.8, 1.5) + 0.02 * self.random.random()

    def frame(self):
        sent = self.t
        (up_s, counted_up_s), (down_s, counted_down_s) = self.wait(), self.wait()
        received = self.trace.finish_time(sent, 600e3) + DELAY_S + up_s
        answered = received + 0.1
        back = self.trace.finish_time(answered, 17e3) + DELAY_S + down_s
        self.estimator.add_transfer(
            Transfer(sent, sent, received, answered, back, 1e-3, 600_000, 17_000, counted_up_s, counted_down_s)
        )
        # the server's load is asked for beside it
        late_s = self.wait()[0]
        self.estimator.add_transfer(Transfer(sent, sent, received + late_s, answered, back + late_s, 1e-3, 300, 500))
        self.t = back
        return self.estimator.make_reading(self.t)


@pytest.mark.parametrize("seed", range(5))
def test_a_constant_link_is_estimated_on_a_busy_machine_and_its_fall_is_followed(seed):
    robot = BusyRobot(Trace((0.0, 60.0), (MBPS_93, 0.1 * MBPS_93), 1e4), seed)
    seen = []
    while robot.t < 60.0:
        reading = robot.frame()
        if robot.t > 5.0:
            seen.append(reading)
    near = [MBPS_93 / 2 < reading.uplink < MBPS_93 * 2 for reading in seen]
    assert sum(near) >= 0.99 * len(near)
    # the answer is too small for the waiting to be told from the link: it must only not cost more than waiting does
    assert all(17e3 / reading.downlink < 0.1 for reading in seen)
    while robot.t < 65.0:
        reading = robot.frame()
    assert 0.1 * MBPS_93 / 2 < reading.uplink < 0.1 * MBPS_93 * 2


# ---------------------------------------------------------------------- over the real thing


def test_both_ends_report_their_waiting_invisibly_to_the_application(serve, connect):
    listener = serve()
    client = connect(listener.address)
    client.wait_ready(60.0)
    payload = bytes(64 << 10)
    for number in range(5):
        reply = client.request("echo", {"number": number}, [payload]).result(60.0)
        assert reply.body == {"number": number}
        assert reply.transfer.waited_up_s >= 0.0
        assert reply.transfer.waited_down_s >= 0.0
    assert client._waits.far._samples[-1][2] > 0, "the server's threads have had turns"
    assert all(math.isfinite(seconds) and seconds >= 0 for seconds in client.scheduling_s)
