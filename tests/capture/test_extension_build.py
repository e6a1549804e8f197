"""Which device a machine gets, and what the build reads off torch."""

from __future__ import annotations

import pytest
import torch

from edge_offload.capture import build, device
from edge_offload.errors import BadInput


def test_the_string_abi_is_torchs_own() -> None:
    assert build._torch_flag(build.torch_directory()) == torch._C._GLIBCXX_USE_CXX11_ABI


def test_the_version_is_read_without_importing_torch() -> None:
    assert build.torch_version() == torch.__version__


@pytest.mark.parametrize(
    ("compiler", "wanted", "chosen"),
    [(None, "", "python"), ("c++", "", "native"), ("c++", "python", "python"), (None, "native", "native")],
)
def test_a_machine_without_a_compiler_gets_the_device_in_python(
    monkeypatch: pytest.MonkeyPatch, compiler: str, wanted: str, chosen: str
) -> None:
    monkeypatch.setattr(build, "existing", lambda: None)
    monkeypatch.setattr(build, "compiler", lambda: compiler)
    monkeypatch.setenv(device.CHOICE, wanted)
    assert device.backend() == chosen


def test_another_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device.CHOICE, "rust")
    with pytest.raises(BadInput, match="rust"):
        device.backend()
