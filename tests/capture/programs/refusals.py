"""What the device in pure Python cannot do. Needs that device."""

import torch
from torch import nn


def refused(function, name):
    said = ""
    try:
        function()
    except NotImplementedError as error:
        said = str(error)
    assert name in said, said
    assert "apt install g++" in said, said


x = torch.ones(2, 3, device="cuda")
refused(lambda: x.resize_(5), "aten::resize_")
refused(lambda: x.transpose_(0, 1), "aten::transpose_")
refused(lambda: x.set_(torch.ones(2, device="cuda")), "aten::set_")
refused(lambda: torch.conj(torch.ones(2, dtype=torch.complex64, device="cuda")), "aten::_conj")
refused(lambda: torch.jit.trace(nn.Conv2d(2, 2, 1).cuda(), torch.ones(1, 2, 3, 3, device="cuda")), "torch.jit.trace")
refused(lambda: torch.jit.script(nn.Linear(2, 2)).cuda(), "TorchScript")
refused(lambda: torch.add(x, 1, out=torch.empty(0, device="cuda")), "aten::add.out")
print("refused")
