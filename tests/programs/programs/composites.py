"""Operators that torch makes of others, and by another way on a GPU: the bits of the CPU, the strides of a GPU."""

import torch
from torch import distributions, nn

from edge_offload.ir.torchvision_package import torchvision_package

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def bits(tensor):
    return [value.hex() for value in tensor.detach().cpu().float().flatten().tolist()]


norms = [nn.GroupNorm(4, 16).to(device), nn.GroupNorm(2, 16, affine=False)]
for _ in range(4):
    x = torch.randn(2, 16, 5, 4).to(memory_format=torch.channels_last).to(device)
    for norm in norms:
        with torch.no_grad():
            y = norm(x)
        print(bits(y), device == "cpu" or y.is_contiguous())
    print(
        bits(nn.functional.silu(x)),
        bits(nn.functional.max_pool1d(x[0, 0], 2)),
        nn.functional.one_hot(x[0, 0, 0].long() ** 0, 3).tolist(),
    )
    mean, spread = x[0, 0, 0], x[0, 1, 0].abs() + 0.1
    for law in (
        distributions.Normal(mean, spread),
        distributions.Categorical(logits=mean),
        distributions.Beta(spread, spread),
    ):
        print(
            bits(
                law.log_prob(
                    torch.full_like(mean, 0.5)
                    if not isinstance(law, distributions.Categorical)
                    else torch.ones_like(mean)
                )
            )
        )
    print(bits(distributions.kl_divergence(distributions.Normal(mean, spread), distributions.Normal(0.0, spread))))
try:
    distributions.Normal(mean, -spread)
except ValueError as error:
    print("found invalid values" in str(error))

boxes_of = torchvision_package().ops.boxes
corner, size = torch.rand(600, 2) * 500.0, 10.0 + torch.rand(600, 2) * 90.0
less = size * torch.tensor([0.5, 1.0])  # half of the other: which of two is left over depends on the last bit
boxes = torch.cat((torch.cat((corner, corner + size), 1), torch.cat((corner, corner + less), 1))).to(device)
scores, classes = torch.rand(1200).to(device), torch.arange(600).remainder(5).repeat(2).to(device)
as_on_a_gpu = boxes_of.batched_nms if device == "cuda" else boxes_of._batched_nms_coordinate_trick
print(as_on_a_gpu(boxes, scores, classes, 0.5).tolist())
print(
    device == "cuda"
    or boxes_of.batched_nms(boxes, scores, classes, 0.5).numel() != as_on_a_gpu(boxes, scores, classes, 0.5).numel()
)
