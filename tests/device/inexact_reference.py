"""A reference whose ``torch.add`` is one unit in the last place off. It stands in front of the reference's command."""

import runpy
import sys

import torch

add = torch.add


def larger(*arguments, **named):
    found = add(*arguments, **named)
    return torch.nextafter(found, torch.full_like(found, float("inf"))) if found.is_floating_point() else found


torch.add = larger
if __name__ == "__main__":
    module = sys.argv[sys.argv.index("-m") + 1]
    runpy.run_module(module, run_name="__main__")
