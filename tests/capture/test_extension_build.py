"""What a machine needs for the virtual device, and what the build reads off torch."""

from __future__ import annotations

import pytest
import torch

from edge_offload.capture import build, device
from edge_offload.errors import BadInput


def test_the_string_abi_is_torchs_own() -> None:
    assert build._torch_flag(build.torch_directory()) == torch._C._GLIBCXX_USE_CXX11_ABI


def test_the_version_is_read_without_importing_torch() -> None:
    assert build.torch_version() == torch.__version__


@pytest.mark.parametrize("wanted", ["", "native"])
def test_the_choice_of_former_releases_is_accepted(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setenv(device.CHOICE, wanted)
    device.check_choice()


@pytest.mark.parametrize("wanted", ["python", "rust"])
def test_another_device_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setenv(device.CHOICE, wanted)
    with pytest.raises(BadInput, match=wanted) as caught:
        device.check_choice()
    assert "unset EDGE_OFFLOAD_DEVICE" in str(caught.value)
    assert "apt install g++" in str(caught.value)
