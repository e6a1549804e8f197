"""Sparse tensors: a sparse buffer of a module, products, sums, and what they are made of."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def bits(tensor):
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return [value.hex() for value in dense.cpu().float().flatten().tolist()]


net = nn.Linear(5, 5)
torch.manual_seed(0)
nn.init.normal_(net.weight)
nn.init.normal_(net.bias)
net.register_buffer("heads", torch.eye(5).to_sparse(), persistent=False)
net.to(device)
print(net.heads.device.type == device, net.heads.indices().T.tolist())
for _ in range(5):
    drawn = torch.randn(6, 5)
    drawn[torch.rand(6, 5) < 0.6] = 0
    x, y = drawn.to(device), net(torch.randn(5, 5).to(device)).detach()
    coo, csr = x.to_sparse(), x.to_sparse_csr()
    print(coo.shape, coo.is_coalesced(), coo.indices().tolist(), bits(coo.values()), bits(coo))
    print(csr.layout, csr.crow_indices().tolist(), csr.col_indices().tolist(), bits(csr))
    print(bits(torch.sparse.mm(coo, y)), bits(coo @ y), bits(csr @ y), bits(drawn.to_sparse().to(device) @ y))
    twice = torch.sparse_coo_tensor(torch.tensor([[0, 0, 2], [1, 1, 0]]).to(device), y[0, :3], (3, 4))
    print(twice.is_coalesced(), bits(twice.coalesce().values()), bits(torch.sparse.sum(coo, 1)), bits(coo.t() @ x))
    tripled, into = coo.clone(), torch.zeros(6, 5, device=device)
    values = tripled.values()
    tripled.mul_(3)
    into.add_(tripled)
    out = torch.empty(6, 5, device=device)
    torch.mm(coo, y, out=out)
    print(bits(values), bits(into), bits(out), bits(coo + coo), bits(torch.sparse.softmax(coo, 1)), bits(coo.cpu()))
if device == "cuda":
    message = ""
    try:
        coo @ y.cpu()
    except RuntimeError as error:
        message = str(error)
    assert "two devices" in message, message
