"""Power rails of NVIDIA's Jetson boards, and those whose sum is the board's total power.

Monitors in sysfs and ``tegrastats`` use the same names of rails. A sum of rails is a total only where NVIDIA says that
they are all inputs. Rails that are parts of others are not added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Tuple

from edge_offload.errors import BadInput

UNUSED = ("", "NC", "N/C")
"""Labels of channels that measure nothing (AGX Orin prints ``NC 0mW/0mW``)."""


class NoTotal(BadInput):
    """Error: no sum of the rails that exist is the board's total power."""


@dataclass(frozen=True)
class BoardRails:
    """A family of boards that reports the same rails.

    Attributes:
        name: for messages.
        total: rails whose sum is the total.
        parts: other rails that it reports, which are parts of the total.
        distinctive: whether rails of these names are a total wherever they occur; else one of ``parts`` must occur too.
    """

    name: str
    total: Tuple[str, ...]
    parts: Tuple[str, ...] = ()
    distinctive: bool = True


BOARDS: Tuple[BoardRails, ...] = (
    # NVIDIA forum 73608, post 8: POM_5V_IN is the overall 5 V input, GPU and CPU are parts of it; jetson-stats issue 51
    BoardRails("Jetson Nano", ("POM_5V_IN",), ("POM_5V_GPU", "POM_5V_CPU")),
    # L4T Development Guide (TX1): VDD_IN is the input of the module, VDD_CPU and VDD_GPU are parts of it
    BoardRails("Jetson TX1", ("VDD_IN",), ("VDD_CPU", "VDD_GPU")),
    # Jetson TX2 OEM Product Design Guide: VDD_IN is the main supply of the module. Its carrier's monitors (VDD_MUX and
    # its branches, at 0x42 and 0x43) do not measure the module
    BoardRails("Jetson TX2", ("VDD_IN",), ("VDD_SYS_GPU", "VDD_SYS_SOC", "VDD_4V0_WIFI", "VDD_SYS_CPU", "VDD_SYS_DDR")),
    # Jetson TX2 NX Design Guide DG-10141, chapter 5: VDD_IN is the main input
    BoardRails("Jetson TX2 NX", ("VDD_IN",), ("VDD_CPU_GPU", "VDD_SOC")),
    # NVIDIA forum 200883: VDD_IN is the total power of the module; L4T 35 Developer Guide, Jetson Xavier NX
    BoardRails("Jetson Xavier NX", ("VDD_IN",), ("VDD_CPU_GPU_CV", "VDD_SOC")),
    # L4T 35 and 36 Developer Guide, "Jetson Orin Nano, Orin NX and AGX Orin": VDD_IN is the module; forum 242804. The
    # device tree of the kernel (tegra234-p3767.dtsi, power-sensor@40) has these three for both modules
    BoardRails("Jetson Orin NX", ("VDD_IN",), ("VDD_CPU_GPU_CV", "VDD_SOC")),
    BoardRails("Jetson Orin Nano", ("VDD_IN",), ("VDD_CPU_GPU_CV", "VDD_SOC")),
    # AGX Xavier Product Design Guide DG-09840, figure 5-14: six supplies, side by side; NVIDIA forums 75574 and 81016:
    # the sum of all is the module's total, as in jetson-stats issue 51
    BoardRails("Jetson AGX Xavier", ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V")),
    # L4T 36.4.3 Developer Guide, "Software-Based Power Consumption Modeling", AGX Orin: VDDQ_VDD2_1V8AO is included in
    # VIN_SYS_5V0; forum 223111
    BoardRails("Jetson AGX Orin", ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"), ("VDDQ_VDD2_1V8AO",)),
    # NVIDIA forum 366461: the INA238 measures VIN, the total input; jetson-stats pull request 900: VIN is the total
    BoardRails("Jetson AGX Thor", ("VIN",), ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"), distinctive=False),
)


def total_rails(names: Iterable[str]) -> Tuple[str, ...]:
    """Return the rails among ``names`` whose sum is the board's total power.

    Raises:
        NoTotal: they match no board of :data:`BOARDS`, or rails of its total are missing.
    """
    present = {name for name in names if name not in UNUSED}
    for board in BOARDS:
        if present.issuperset(board.total) and (board.distinctive or present.intersection(board.parts)):
            return board.total
    rails = ", ".join(sorted(present))
    likely = max(BOARDS, key=lambda board: len(present.intersection((*board.total, *board.parts))))
    missing = [name for name in likely.total if name not in present]
    if missing and present.intersection((*likely.total, *likely.parts)):
        cause = (
            f"the rails {rails} are parts of the total: a {likely.name} draws {' + '.join(likely.total)}, "
            f"and there is no {', '.join(missing)}"
        )
    else:
        cause = f"the rails {rails} are those of no board that is known, so that their sum may be no total"
    raise NoTotal(cause, remedy="give a table of watts with power_config")
