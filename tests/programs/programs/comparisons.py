"""Tensors that are compared again and again while some of them are written, in every way there is; and constants."""

import random

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def values(generator, size):
    """A few numbers that are mostly those of others: also zeros of both signs, and now and then one that is none."""
    drawn = [generator.choice((0.0, -0.0, 1.0))] * size
    if generator.random() < 0.3:
        drawn[:1] = [generator.choice((0.0, 1.0, float("nan")))][:size]
    return torch.tensor(drawn)


def write(generator, tensor, norm):
    """Change ``tensor``, or what it is a view of, in one of many ways."""
    way = generator.randrange(8)
    if way == 0:
        tensor.copy_(values(generator, tensor.numel()))  # from the host
    elif way == 1:
        tensor[: tensor.numel() // 2].fill_(generator.choice((0.0, 1.0)))
    elif way == 2:
        tensor.detach().as_strided((1,), (1,), 1).add_(1.0)
    elif way == 3:
        torch.mul(tensor, tensor, out=tensor)
    elif way == 4:
        torch._foreach_mul_([tensor], -1.0)
    elif way == 5:
        tensor.data.masked_fill_(tensor == 0.0, 0.0)
    elif way == 6:
        norm.running_mean.copy_(tensor)
        norm(values(generator, 4).to(DEVICE)[None].repeat(3, 1))  # writes to its mean
    else:
        tensor.resize_(2).resize_(4).copy_(values(generator, 4).to(DEVICE))


def main():
    """Random programs, then pairs of constants, twice."""
    with torch.no_grad():
        for seed in range(6):
            generator = random.Random(seed)
            norm = nn.BatchNorm1d(4, momentum=1.0).to(DEVICE)
            tensors = [values(generator, size).to(DEVICE) for size in (4, 4, 4, 4, 5, 0)]
            tensors += [
                tensors[0].clone(),
                tensors[1].view(2, 2).t(),
                tensors[2].half(),
                tensors[3].expand(2, 4),
                norm.running_mean,
            ]
            flags = ""
            for _ in range(60):
                if generator.random() < 0.15:
                    write(generator, tensors[generator.randrange(4)], norm)
                if generator.random() < 0.1:
                    tensors[6] = values(generator, 4).to(DEVICE)
                one, other = generator.choice(tensors), generator.choice(tensors)
                flags += "ny"[torch.equal(one, other)]
            print(flags)
        constants = [torch.full((8,), number // 2).float().to(DEVICE) for number in range(12)]
        torch.zeros(1).to(DEVICE).cpu()
        torch.zeros(1).to(DEVICE)
        for _ in range(2):
            print(sum(torch.equal(one, other) for one in constants for other in constants))
        folded = [constant * 2.0 for constant in constants]  # as torch.jit.freeze folds weights
        torch.zeros(1).to(DEVICE)
        print("folded")
        print(sum(torch.equal(one, other) for one in folded for other in folded))
        folded[3].add_(4.0)
        folded[7].copy_(folded[9])
        del folded[5]
        print([torch.equal(folded[0] + number, one) for number, one in enumerate(folded)])
        print([torch.equal(one, other) for one in folded for other in folded])


main()
