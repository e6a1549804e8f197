"""Every Jetson board, by a line of its tegrastats and a tree of its monitors: what it draws is right, or unknown."""

from __future__ import annotations

import pathlib
from typing import Dict, List, NamedTuple, Optional, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.power.boards import BOARDS, total_rails
from edge_offload.power.detect import detect
from edge_offload.power.ina3221 import Ina3221
from edge_offload.power.tegrastats import Tegrastats, parse_line

from .test_sensors import fake_nvml, hwmon_board, iio_board, tegrastats_script, write


class Example(NamedTuple):
    """What a board's tegrastats prints, milliwatts of rails in sysfs by chip, and what it draws (W; None: unknown)."""

    line: str
    chips: Dict[str, List[Tuple[str, int]]]
    watts: Optional[float]
    iio: bool = False
    input_mw: Optional[int] = None


CPU = "CPU [2%@1420,off,5%@1420,0%@729]"
ORIN_NX = [("VDD_IN", 5200), ("VDD_CPU_GPU_CV", 800), ("VDD_SOC", 1400)]
CARRIER = ("VDD_MUX", "VDD_5V0_IO_SYS", "VDD_3V3_SYS", "VDD_3V3_IO_SLP", "VDD_1V8_IO", "VDD_3V3_SYS_M2")
THOR = [("VDD_GPU", 5000), ("VDD_CPU_SOC_MSS", 7000), ("VIN_SYS_5V0", 6000)]

EXAMPLES = {
    "Jetson Nano": Example(
        f"RAM 1903/3964MB (lfb 2x4MB) IRAM 0/252kB(lfb 252kB) {CPU} EMC_FREQ 0%@204 GR3D_FREQ 0%@76 APE 25 PLL@42C "
        "POM_5V_IN 1022/1022 POM_5V_GPU 0/0 POM_5V_CPU 163/163",
        {"6-0040": [("POM_5V_IN", 1022), ("POM_5V_GPU", 0), ("POM_5V_CPU", 163)]},
        1.022,
        iio=True,
    ),
    "Jetson TX1": Example(
        f"RAM 900/3983MB (lfb 500x4MB) {CPU} EMC_FREQ 7%@408 GR3D_FREQ 0%@76 PLL@38C VDD_IN 2532/2532 VDD_CPU 76/95 "
        "VDD_GPU 19/19",
        {"1-0040": [("VDD_IN", 2532), ("VDD_GPU", 19), ("VDD_CPU", 76)]},
        2.532,
        iio=True,
    ),
    "Jetson TX2": Example(
        f"RAM 1004/7852MB (lfb 7x2MB) {CPU} EMC_FREQ 17%@40 GR3D_FREQ 0%@114 APE 150 MTS fg 0% bg 0% PLL@34C "
        "VDD_SYS_GPU 153/153 VDD_SYS_SOC 383/383 VDD_4V0_WIFI 0/0 VDD_IN 1876/1876 VDD_SYS_CPU 229/229 "
        "VDD_SYS_DDR 134/134",
        {
            "0-0040": [("VDD_SYS_GPU", 153), ("VDD_SYS_SOC", 383), ("VDD_4V0_WIFI", 0)],
            "0-0041": [("VDD_IN", 1876), ("VDD_SYS_CPU", 229), ("VDD_SYS_DDR", 134)],
            "0-0042": [("VDD_MUX", 3800), ("VDD_5V0_IO_SYS", 900), ("VDD_3V3_SYS", 100)],
            "0-0043": [("VDD_3V3_IO_SLP", 10), ("VDD_1V8_IO", 90), ("VDD_3V3_SYS_M2", 0)],
        },
        1.876,
        iio=True,
    ),
    "Jetson TX2 NX": Example(
        f"RAM 1004/3825MB (lfb 7x2MB) {CPU} PLL@34C VDD_IN 2300/2300 VDD_CPU_GPU 400/400 VDD_SOC 700/700",
        {"7-0040": [("VDD_IN", 2300), ("VDD_CPU_GPU", 400), ("VDD_SOC", 700)]},
        2.3,
        iio=True,
    ),
    "Jetson Xavier NX": Example(
        f"RAM 2100/7771MB (lfb 900x4MB) SWAP 0/3886MB (cached 0MB) {CPU} AO@41.5C VDD_IN 4181/4205 "
        "VDD_CPU_GPU_CV 823/830 VDD_SOC 1112/1112",
        {"7-0040": [("VDD_IN", 4181), ("VDD_CPU_GPU_CV", 823), ("VDD_SOC", 1112)]},
        4.181,
        iio=True,
    ),
    "Jetson AGX Xavier": Example(
        f"RAM 2919/31919MB (lfb 6179x4MB) SWAP 0/15959MB (cached 0MB) {CPU} EMC_FREQ 0% GR3D_FREQ 0% AO@42C GPU@42C "
        "Tdiode@44.75C CPU@42C GPU 0/16 CPU 310/432 SOC 931/953 CV 0/0 VDDRQ 466/488 SYS5V 1522/1559",
        {
            "1-0040": [("GPU", 0), ("CPU", 310), ("SOC", 931)],
            "1-0041": [("CV", 0), ("VDDRQ", 466), ("SYS5V", 1522)],
        },
        3.229,
    ),
    "Jetson AGX Xavier, JetPack 5": Example(
        f"11-21-2026 11:40:00 RAM 2919/31919MB (lfb 6179x4MB) {CPU} GPU 100mW/100mW CPU 310mW/432mW SOC 931mW/953mW "
        "CV -4mW/0mW VDDRQ 466mW/488mW SYS5V 1522mW/1559mW",
        {
            "1-0040": [("GPU", 100), ("CPU", 310), ("SOC", 931)],
            "1-0041": [("CV", -4), ("VDDRQ", 466), ("SYS5V", 1522)],
        },
        3.325,
    ),
    "Jetson Xavier NX, JetPack 5": Example(
        f"11-21-2026 11:40:00 RAM 2100/6854MB (lfb 900x4MB) SWAP 0/3427MB (cached 0MB) {CPU} EMC_FREQ 0% GR3D_FREQ 0% "
        "CV0@-256C AO@41.5C VDD_IN 4181mW/4205mW VDD_CPU_GPU_CV 823mW/830mW VDD_SOC 1112mW/1112mW",
        {"7-0040": [("VDD_IN", 4181), ("VDD_CPU_GPU_CV", 823), ("VDD_SOC", 1112)]},
        4.181,
    ),
    "Jetson Orin Nano": Example(
        f"11-21-2026 11:40:00 RAM 2800/7620MB (lfb 2x4MB) SWAP 0/3810MB (cached 0MB) {CPU} EMC_FREQ 0%@2133 "
        "GR3D_FREQ 0%@[305] VIC_FREQ 115 APE 174 cpu@49.2C soc2@48C tj@49.2C soc0@47.5C gpu@48.9C soc1@48.1C "
        "VDD_IN 4717mW/4717mW VDD_CPU_GPU_CV 510mW/510mW VDD_SOC 1451mW/1451mW",
        {"1-0040": [("VDD_IN", 4717), ("VDD_CPU_GPU_CV", 510), ("VDD_SOC", 1451)]},
        4.717,
    ),
    "Jetson Orin NX": Example(
        f"11-21-2026 11:40:00 RAM 2462/7850MB (lfb 4x4MB) {CPU} GR3D_FREQ 0% cpu@46.5C tj@47C VDD_IN 5200mW/5210mW "
        "VDD_CPU_GPU_CV 800mW/830mW VDD_SOC 1400mW/1400mW",
        {"1-0040": ORIN_NX},
        5.2,
    ),
    "Jetson AGX Orin": Example(
        f"11-21-2026 11:40:00 RAM 5000/62841MB (lfb 4x4MB) {CPU} GR3D_FREQ 14%@[407,407] tj@77.281C "
        "VDD_GPU_SOC 3150mW/2971mW VDD_CPU_CV 14312mW/12415mW VIN_SYS_5V0 4968mW/5048mW NC 0mW/0mW "
        "VDDQ_VDD2_1V8AO 1091mW/1091mW NC 0mW/0mW",
        {
            "1-0040": [("VDD_GPU_SOC", 3150), ("VDD_CPU_CV", 14312), ("VIN_SYS_5V0", 4968)],
            "1-0041": [("NC", 0), ("VDDQ_VDD2_1V8AO", 1091), ("NC", 0)],
        },
        22.43,
    ),
    "Jetson AGX Thor": Example(
        f"12-09-2026 04:56:58 RAM 16614/125772MB (lfb 106x4MB) {CPU} GR3D_FREQ @[0,0,0] cpu@35.25C tj@36.343C "
        "VDD_GPU 5000mW/5000mW VDD_CPU_SOC_MSS 7000mW/7000mW VIN_SYS_5V0 6000mW/6000mW VIN 29000mW/12765mW",
        {"1-0040": THOR},
        29.0,
        input_mw=29000,
    ),
    "Jetson AGX Thor, three figures": Example(
        f"RAM 16614/125772MB (lfb 106x4MB) {CPU} cpu@34.8C/34.8C VDD_GPU -392mW/0mW/10mW VDD_CPU_SOC_MSS "
        "3924mW/3924mW/4000mW VIN_SYS_5V0 6000mW/6000mW/6100mW VIN 18000mW/18000mW/19000mW",
        {"1-0040": [("VDD_GPU", -392), ("VDD_CPU_SOC_MSS", 3924), ("VIN_SYS_5V0", 6000)]},
        18.0,
        input_mw=18000,
    ),
    "Jetson AGX Thor without its INA238": Example(
        f"RAM 9101/125811MB (lfb 19x4MB) {CPU} VDD_GPU 5000mW/5000mW/5000mW VDD_CPU_SOC_MSS 7000mW/7000mW/7000mW "
        "VIN_SYS_5V0 6000mW/6000mW/6000mW",
        {"1-0040": THOR},
        None,
    ),
    "Jetson AGX Orin whose 5 V are not monitored": Example(
        f"RAM 9101/62841MB {CPU} VDD_GPU_SOC 3150mW/2971mW VDD_CPU_CV 14312mW/12415mW",
        {"1-0040": [("VDD_GPU_SOC", 3150), ("VDD_CPU_CV", 14312)]},
        None,
    ),
    "a board of tomorrow": Example(
        f"RAM 9101/62841MB {CPU} VDD_X_SOC 3150mW/2971mW VDD_Y 14312mW/12415mW",
        {"1-0040": [("VDD_X_SOC", 3150), ("VDD_Y", 14312)]},
        None,
    ),
}


def sysfs_of(root: pathlib.Path, board: Example) -> pathlib.Path:
    for chip, rails in board.chips.items():
        if board.iio:
            iio_board(root, rails, chip)
        else:
            hwmon_board(root, [(name, 5000, milliwatts / 5) for name, milliwatts in rails], chip)
    if board.input_mw is not None:
        write(root / "sys/bus/i2c/drivers/ina238/2-0044/hwmon/hwmon5/label", "VIN")
        write(root / "sys/bus/i2c/drivers/ina238/2-0044/hwmon/hwmon5/in1_input", 20000)
        write(root / "sys/bus/i2c/drivers/ina238/2-0044/hwmon/hwmon5/curr1_input", board.input_mw / 20)
        write(root / "sys/bus/i2c/drivers/ina238/2-0044/hwmon/hwmon5/power1_input", board.input_mw * 1000)
    return root


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_line_of_a_boards_tegrastats_gives_its_power_or_the_reason(name: str) -> None:
    board = EXAMPLES[name]
    rails = parse_line(board.line)
    # carriers' monitors are in sysfs alone
    monitors = {rail for chip in board.chips.values() for rail, _ in chip if rail not in ("NC", *CARRIER)}
    assert set(rails) == monitors | ({"VIN"} if board.input_mw else set())
    if board.watts is not None:
        assert sum(rails[name] for name in total_rails(rails)) == pytest.approx(board.watts)
    else:
        with pytest.raises(BadInput, match=next(iter(sorted(rails)))):
            total_rails(rails)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_boards_monitors_in_sysfs_give_its_power_or_the_reason(tmp_path: pathlib.Path, name: str) -> None:
    board = EXAMPLES[name]
    sysfs_of(tmp_path, board)
    if board.watts is not None:
        assert Ina3221(tmp_path).watts() == pytest.approx(board.watts)
    else:
        with pytest.raises(BadInput, match=board.chips["1-0040"][0][0]):
            Ina3221(tmp_path)


def test_every_board_of_the_table_has_an_example() -> None:
    assert {board.name for board in BOARDS} <= set(EXAMPLES)


@pytest.mark.process
def test_a_board_without_a_monitor_is_reported_as_unknown(tmp_path: pathlib.Path) -> None:
    """The developer kit of the Jetson Nano with 2 GB has none."""
    line = f"RAM 1403/1979MB (lfb 2x4MB) SWAP 0/989MB (cached 0MB) {CPU} EMC_FREQ 1%@1600 GR3D_FREQ 0%@76 PLL@25.5C"
    assert parse_line(line) == {}
    detected = detect(root=tmp_path, nvml=fake_nvml([None]), tegrastats=str(tmp_path / "none"))
    assert detected.sources == []
    assert "no INA3221" in detected.absent["ina3221"]


def test_an_ina238_without_labels_is_the_input_of_a_thor(tmp_path: pathlib.Path) -> None:
    sysfs_of(tmp_path, EXAMPLES["Jetson AGX Thor"])
    hwmon = tmp_path / "sys/bus/i2c/drivers/ina238/2-0044/hwmon/hwmon5"
    (hwmon / "label").unlink()
    assert Ina3221(tmp_path).name == "ina3221 VIN"
    (hwmon / "power1_input").unlink()
    assert Ina3221(tmp_path).watts() == pytest.approx(29.0)


def test_an_ina238_on_another_board_is_no_part_of_the_total(tmp_path: pathlib.Path) -> None:
    sysfs_of(tmp_path, EXAMPLES["Jetson Orin NX"]._replace(input_mw=90000))
    assert Ina3221(tmp_path).watts() == pytest.approx(5.2)


@pytest.mark.process
@pytest.mark.parametrize("name", ["Jetson AGX Xavier", "Jetson AGX Thor"])
def test_tegrastats_names_the_rails_that_it_adds_up(tmp_path: pathlib.Path, name: str) -> None:
    source = Tegrastats(tegrastats_script(tmp_path / "tegrastats", f"echo '{EXAMPLES[name].line}'; sleep 1\n"))
    try:
        assert source.watts() == pytest.approx(EXAMPLES[name].watts)
        assert source.name == "tegrastats " + "+".join(total_rails(parse_line(EXAMPLES[name].line)))
    finally:
        source.close()


@pytest.mark.process
def test_parts_of_a_board_are_never_reported_as_the_total(tmp_path: pathlib.Path) -> None:
    board = EXAMPLES["Jetson AGX Thor without its INA238"]
    sysfs_of(tmp_path, board)
    script = tegrastats_script(tmp_path / "tegrastats", f"echo '{board.line}'; sleep 1\n")
    detected = detect(root=tmp_path, nvml=fake_nvml([5000]), tegrastats=script)
    assert detected.sources == []
    assert "there is no VIN" in detected.parts
    for name in ("ina3221", "tegrastats"):
        assert "a Jetson AGX Thor draws VIN, and there is no VIN" in detected.absent[name]
    assert "a part of what the board draws" in detected.absent["nvml"]
    with pytest.raises(BadInput, match="there is no VIN"):
        detect("tegrastats", root=tmp_path, tegrastats=script)


@given(st.sampled_from(BOARDS), st.data())
def test_rails_without_one_of_a_total_are_no_total(board, data) -> None:  # type: ignore[no-untyped-def]
    missing = data.draw(st.sampled_from(board.total))
    extra = data.draw(st.sets(st.sampled_from(["VDD_CARRIER", "VDD_FAN", *board.parts])))
    names = {*board.total, *extra} - {missing}
    try:
        assert missing not in total_rails(names)
        raise AssertionError(f"{names} are told as a total")
    except BadInput:
        pass
    full = total_rails({*board.total, *board.parts, *extra})
    assert full == board.total
