"""Device tensors as a subclass of ``torch.Tensor``: what a program asks of one that is not an operator."""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch

from edge_offload.capture.fallback.device import Slot
from edge_offload.capture.fallback.operators import REMEDY

CUDA0 = torch.device("cuda", 0)


class RemoteTensor(torch.Tensor):
    """A tensor on the device. ``_slot`` is its storage, ``_layout`` the number of how it lies in it."""

    _slot: Slot
    _layout: int

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        raise RuntimeError("edge_offload: the virtual device is not installed")  # the engine puts its own here

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        with torch.no_grad():
            text = repr(self.detach().cpu())
        return f"{text[:-1]}, device='cuda:0')"

    def tolist(self) -> Any:
        """As nested lists; the host reads."""
        with torch.no_grad():
            return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """As on a GPU: only by force."""
        if force:
            with torch.no_grad():
                return self.detach().cpu().numpy()
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def data_ptr(self) -> int:
        """A number that tells storages apart; nothing is there."""
        return 0xE000000000000000 | (self._slot.id << 12)

    def untyped_storage(self) -> Any:
        """Refused: the storage is not of this process."""
        raise NotImplementedError(f"the storage of a tensor on the device is not there: {REMEDY}")

    storage = _typed_storage = untyped_storage

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            copied: Any = self.detach().clone()
        copied.requires_grad_(self.requires_grad)
        copied.__dict__.update({k: v for k, v in self.__dict__.items() if k not in ("_slot", "_layout")})
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """It is saved as a host tensor whose storage says that it was on the device."""
        with torch.no_grad():
            host: Any = self.detach().cpu()
        host.untyped_storage()._edge_offload_saved = True
        if getattr(self, "_is_param", False):
            host = torch.nn.Parameter(host, self.requires_grad)
        else:
            host.requires_grad_(self.requires_grad)
        return host.__reduce_ex__(protocol)

    @property
    def data(self) -> Any:
        """The tensor without its history; assigning makes this tensor another one."""
        return self.detach()

    @data.setter
    def data(self, other: Any) -> None:
        if not isinstance(other, RemoteTensor):
            raise TypeError(f"edge_offload: .data of a tensor on the device cannot be one on the host ({REMEDY})")
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self._slot, self._layout = other._slot, other._layout
