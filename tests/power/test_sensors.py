"""Power sensors, read from made-up sysfs trees."""

from __future__ import annotations

import math
import pathlib
import stat
import threading
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.power.boards import total_rails
from edge_offload.power.detect import detect
from edge_offload.power.ina3221 import Ina3221, find_rails
from edge_offload.power.nvml import GpuLoad, Nvml
from edge_offload.power.rapl import Rapl, Zone
from edge_offload.power.tegrastats import Tegrastats, parse_line
from edge_offload.power.thermal import board_values, throttling


def write(path: pathlib.Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def hwmon_board(root: pathlib.Path, rails: list, chip: str = "1-0040") -> pathlib.Path:
    directory = root / f"sys/bus/i2c/drivers/ina3221/{chip}/hwmon/hwmon3"
    for channel, (name, millivolts, milliamperes) in enumerate(rails, start=1):
        write(directory / f"in{channel}_label", name)
        write(directory / f"in{channel}_input", millivolts)
        write(directory / f"curr{channel}_input", milliamperes)
    return directory


def iio_board(root: pathlib.Path, rails: list, chip: str = "6-0040") -> pathlib.Path:
    directory = root / f"sys/bus/i2c/drivers/ina3221x/{chip}/iio:device0"
    for channel, (name, milliwatts) in enumerate(rails):
        write(directory / f"rail_name_{channel}", name)
        write(directory / f"in_power{channel}_input", milliwatts)
    return directory


def rapl_zone(
    root: pathlib.Path, zone: str, name: str, energy_uj: int, range_uj: int = 262_143_328_850
) -> pathlib.Path:
    directory = root / "sys/class/powercap" / zone
    write(directory / "name", name)
    write(directory / "energy_uj", energy_uj)
    write(directory / "max_energy_range_uj", range_uj)
    return directory


def test_ina3221_hwmon_reads_the_input_rail_and_not_its_parts(tmp_path: pathlib.Path) -> None:
    hwmon_board(tmp_path, [("VDD_IN", 4976, 1240), ("VDD_CPU_GPU_CV", 4968, 320), ("VDD_SOC", 4960, 240)])
    source = Ina3221(tmp_path)
    assert source.name == "ina3221 VDD_IN"
    assert source.kind == "measured"
    assert source.watts() == pytest.approx(4.976 * 1.240)


def test_ina3221_iio_reads_milliwatts(tmp_path: pathlib.Path) -> None:
    iio_board(tmp_path, [("VDD_IN", 4181), ("VDD_CPU_GPU_CV", 823), ("VDD_SOC", 1112)])
    assert Ina3221(tmp_path).watts() == pytest.approx(4.181)


def test_ina3221_without_an_input_rail_sums_the_rails_of_all_chips(tmp_path: pathlib.Path) -> None:
    iio_board(tmp_path, [("GPU", 1000), ("CPU", 2000), ("SOC", 3000)], "1-0040")
    iio_board(tmp_path, [("CV", 100), ("VDDRQ", 200), ("SYS5V", 300)], "1-0041")
    source = Ina3221(tmp_path)
    assert source.watts() == pytest.approx(6.6)
    assert {rail.name: rail.read() for rail in source._rails}["VDDRQ"] == pytest.approx(0.2)


def test_ina3221_leaves_out_unused_and_disabled_channels(tmp_path: pathlib.Path) -> None:
    directory = hwmon_board(tmp_path, [("NC", 5000, 100), ("VDD_SOC", 5000, 200), ("VDD_CPU", 5000, 400)])
    write(directory / "in3_enable", 0)
    assert list(find_rails(tmp_path)) == ["VDD_SOC"]


@pytest.mark.parametrize("content", ["", "garbage"])
def test_ina3221_that_reads_nonsense_is_an_error_not_a_number(tmp_path: pathlib.Path, content: str) -> None:
    directory = hwmon_board(tmp_path, [("VDD_IN", 5000, 100)])
    source = Ina3221(tmp_path)
    write(directory / "curr1_input", content)
    with pytest.raises(OSError, match="not a number"):
        source.watts()
    with pytest.raises(BadInput, match="cannot be read"):
        Ina3221(tmp_path)


def test_ina3221_names_the_available_rails(tmp_path: pathlib.Path) -> None:
    hwmon_board(tmp_path, [("VDD_IN", 5000, 100)])
    with pytest.raises(BadInput, match="rails: VDD_IN"):
        Ina3221(tmp_path, rails=["VDD_GPU"])


def test_rapl_sums_packages_and_memory_but_not_the_parts_of_a_package(tmp_path: pathlib.Path) -> None:
    package = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    core = rapl_zone(tmp_path, "intel-rapl:0:0", "core", 500_000)
    dram = rapl_zone(tmp_path, "intel-rapl:0:1", "dram", 0)
    psys = rapl_zone(tmp_path, "intel-rapl:1", "psys", 0)
    source = Rapl(tmp_path)
    for zone, energy in ((package, 3_000_000), (core, 9_000_000), (dram, 500_000), (psys, 7_000_000)):
        write(zone / "energy_uj", energy)
    assert source.joules() == pytest.approx(2.5)


def test_rapl_power_is_the_mean_since_the_last_reading(tmp_path: pathlib.Path) -> None:
    zone = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 0)
    now = 0.0
    source = Rapl(tmp_path, clock=lambda: now)
    assert source.watts() == 0.0
    now = 2.0
    write(zone / "energy_uj", 30_000_000)
    assert source.watts() == pytest.approx(15.0)
    assert source.watts() == pytest.approx(15.0), "no time passed: the last value stands"


@given(st.integers(2, 10**9), st.lists(st.integers(0, 10**9), min_size=1, max_size=20), st.integers(0, 10**9))
def test_rapl_counts_exactly_through_wrap_arounds(
    tmp_path_factory: pytest.TempPathFactory, turn: int, steps: list, start: int
) -> None:
    directory = rapl_zone(tmp_path_factory.mktemp("rapl"), "intel-rapl:0", "package-0", start % turn, turn)
    zone = Zone(directory)
    total = 0
    for step in steps:
        total += step % turn  # read at least once per turn of the counter
        write(directory / "energy_uj", (start + total) % turn)
        assert zone.read_microjoules() == total


def test_unreadable_rapl_is_reported(tmp_path: pathlib.Path) -> None:
    zone = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 0)
    (zone / "energy_uj").unlink()
    with pytest.raises(BadInput, match="run as root"):
        Rapl(tmp_path)


class NvmlError(Exception):
    pass


def fake_nvml(milliwatts: list) -> types.SimpleNamespace:
    """A binding with one board per entry; None is a board that does not report its power."""

    def usage(board: int) -> int:
        if milliwatts[board] is None:
            raise NvmlError("Not Supported")
        return milliwatts[board]

    return types.SimpleNamespace(
        NVMLError=NvmlError, nvmlInit=lambda: None, nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(milliwatts), nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda board: types.SimpleNamespace(gpu=40 + 20 * board),
        nvmlDeviceGetName=lambda board: f"GPU-{board}".encode(), nvmlDeviceGetPowerUsage=usage,
    )  # fmt: skip


def test_nvml_sums_the_boards_that_report() -> None:
    milliwatts = [125_000, None, 25_500]
    source = Nvml(fake_nvml(milliwatts))
    assert source.name == "nvml GPU-0+GPU-2"
    assert source.watts() == pytest.approx(150.5)
    milliwatts[0] = None
    with pytest.raises(OSError, match="Not Supported"):
        source.watts()


def test_the_load_of_gpus_is_unknown_without_any_and_without_nvml() -> None:
    assert GpuLoad(fake_nvml([1, None])).mean_share() == pytest.approx(0.5)
    assert math.isnan(GpuLoad(fake_nvml([])).mean_share())
    broken = fake_nvml([1])

    def init() -> None:
        raise NvmlError("Driver Not Loaded")

    broken.nvmlInit = init
    load = GpuLoad(broken)
    assert math.isnan(load.mean_share())
    assert "Driver Not Loaded" in load.absent
    load.close()


def test_nvml_with_no_reporting_board_is_absent() -> None:
    with pytest.raises(BadInput, match="no board reports"):
        Nvml(fake_nvml([None]))


JETPACK_5 = (
    "11-21-2026 11:40:00 RAM 2462/7850MB (lfb 4x4MB) SWAP 0/3925MB (cached 0MB) CPU [12%@1420,off,5%@1420] EMC_FREQ 0% "
    "GR3D_FREQ 0% CV0@-256C CPU@46.5C tj@47C VDD_IN 4181mW/4205mW VDD_CPU_GPU_CV 823mW/830mW VDD_SOC 1112mW/1112mW"
)
JETPACK_4 = "RAM 1903/3964MB CPU [2%@102] PLL@42C POM_5V_IN 1022/1022 POM_5V_GPU 0/0 POM_5V_CPU 163/163"


def test_tegrastats_lines_of_both_generations() -> None:
    rails = parse_line(JETPACK_5)
    assert rails == pytest.approx({"VDD_IN": 4.181, "VDD_CPU_GPU_CV": 0.823, "VDD_SOC": 1.112})
    assert sum(rails[name] for name in total_rails(rails)) == pytest.approx(4.181)
    assert parse_line(JETPACK_4) == pytest.approx({"POM_5V_IN": 1.022, "POM_5V_GPU": 0.0, "POM_5V_CPU": 0.163})
    assert len(total_rails(("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"))) == 3


@given(st.text())
def test_tegrastats_lines_that_name_no_rail_give_none(text: str) -> None:
    assert parse_line("RAM 100/200MB SWAP 3/4MB " + text.lower()) == {}


def tegrastats_script(path: pathlib.Path, body: str) -> str:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.process
def test_tegrastats_is_run_and_its_end_is_noticed(tmp_path: pathlib.Path) -> None:
    script = tegrastats_script(tmp_path / "tegrastats", f"echo '{JETPACK_5}'\n")
    now = 10.0
    source = Tegrastats(script, stale_s=2.0, clock=lambda: now)
    assert source.watts() == pytest.approx(4.181)
    now = 12.5
    with pytest.raises(OSError, match="stopped reporting"):
        source.watts()
    source.close()


@pytest.mark.process
def test_tegrastats_leaves_nothing_running(tmp_path: pathlib.Path) -> None:
    before = threading.active_count()
    script = tegrastats_script(tmp_path / "tegrastats", f"while true; do echo '{JETPACK_4}'; sleep 0.02; done\n")
    source = Tegrastats(script)
    assert source.watts() == pytest.approx(1.022)
    source.close()
    assert source._process.poll() is not None
    assert threading.active_count() == before


@pytest.mark.process
def test_tegrastats_without_power_is_absent(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadInput, match="no power rail"):
        Tegrastats(tegrastats_script(tmp_path / "tegrastats", "echo RAM 1/2MB\n"))


def test_detect_prefers_the_board_total_and_reports_why_others_are_not_used(tmp_path: pathlib.Path) -> None:
    hwmon_board(tmp_path, [("VDD_IN", 5000, 1000)])
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 0)
    detected = detect(root=tmp_path, nvml=fake_nvml([1000]), tegrastats=str(tmp_path / "none"))
    assert [source.name for source in detected.sources] == ["ina3221 VDD_IN"]
    assert set(detected.absent) == {"tegrastats", "rapl", "nvml"}
    assert "whole board" in detected.absent["rapl"]


@pytest.mark.process
def test_detect_adds_up_processor_and_gpu(tmp_path: pathlib.Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 0)
    detected = detect(root=tmp_path, nvml=fake_nvml([30_000]), tegrastats=str(tmp_path / "none"))
    assert [source.name for source in detected.sources] == ["rapl package-0", "nvml GPU-0"]
    assert "Jetson" in detected.absent["ina3221"]


@pytest.mark.process
def test_a_gpu_without_its_processor_is_no_total(tmp_path: pathlib.Path) -> None:
    """The counters of RAPL are root's; or there are none."""
    detected = detect(root=tmp_path, nvml=fake_nvml([30_000]), tegrastats=str(tmp_path / "none"))
    assert detected.sources == []
    assert "the GPU alone can be measured: no RAPL" in detected.parts
    (rapl_zone(tmp_path, "intel-rapl:0", "package-0", 0) / "energy_uj").unlink()
    detected = detect(root=tmp_path, nvml=fake_nvml([30_000]), tegrastats=str(tmp_path / "none"))
    assert detected.sources == []
    assert "the GPU alone can be measured: RAPL cannot be read" in detected.parts
    assert "run as root" in detected.parts
    assert "choose the source nvml" in detected.absent["nvml"]
    assert detect("nvml", root=tmp_path, nvml=fake_nvml([30_000])).sources[0].watts() == pytest.approx(30)


@pytest.mark.process
def test_a_processor_without_its_gpu_is_no_total(tmp_path: pathlib.Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 0)
    assert [source.name for source in detect(root=tmp_path, nvml=fake_nvml([])).sources] == ["rapl package-0"]
    write(tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: GPU")
    detected = detect(root=tmp_path, nvml=fake_nvml([None]))
    assert detected.sources == []
    assert "the processor alone can be measured: NVML: no board reports its power" in detected.parts


@pytest.mark.process
def test_detect_on_a_bare_machine_reports_why_no_source_is_available(tmp_path: pathlib.Path) -> None:
    detected = detect(root=tmp_path, nvml=fake_nvml([]), tegrastats=str(tmp_path / "none"))
    assert detected.sources == []
    assert all(detected.absent[name] for name in ("ina3221", "tegrastats", "rapl", "nvml"))


def test_a_source_requested_by_name_must_exist(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadInput, match="RAPL"):
        detect("rapl", root=tmp_path)
    with pytest.raises(BadInput, match="use one of"):
        detect("battery", root=tmp_path)
    assert detect("model", root=tmp_path).sources == []


def cooling_device(root: pathlib.Path, number: int, kind: str, state: object, most: int) -> None:
    directory = root / f"sys/class/thermal/cooling_device{number}"
    for name, value in (("type", kind), ("cur_state", state), ("max_state", most)):
        write(directory / name, value)


def test_an_emulated_board_reports_power_mode_fan_and_thermal_slowdown(tmp_path: pathlib.Path) -> None:
    zones = tmp_path / "sys/class/thermal"
    assert (board_values(tmp_path), throttling(zones)) == ({}, "")
    write(tmp_path / "var/lib/nvpmodel/status", "pmode:0002")
    assert board_values(tmp_path) == {"nvpmodel": "mode 2"}
    modes = ["# < POWER_MODEL ID=2 NAME=OLD >", "< POWER_MODEL ID=0 NAME=MAXN >", "< POWER_MODEL ID=2 NAME=MODE_15W >"]
    write(tmp_path / "etc/nvpmodel.conf", "\n".join(modes))
    cooling_device(tmp_path, 0, "pwm-fan", 3, 10)
    cooling_device(tmp_path, 1, "cpufreq-cpu0", 0, 28)
    cooling_device(tmp_path, 2, "hot-surface-alert", 1, 1)
    cooling_device(tmp_path, 3, "gpu-throttle-alert", "cannot be read", 1)
    assert board_values(tmp_path) == {"nvpmodel": "mode 2 MODE_15W", "fan": "3 of 10"}
    assert throttling(zones) == ""
    cooling_device(tmp_path, 1, "cpufreq-cpu0", 7, 28)
    cooling_device(tmp_path, 3, "gpu-throttle-alert", 1, 1)
    assert throttling(zones).endswith("slowly: cpufreq-cpu0 7 of 28, gpu-throttle-alert 1 of 1")
