"""A reference whose sums and linear layers are one unit in the last place off. It stands in front of its command."""

import runpy
import sys

import torch


def inexact(function):
    def larger(*arguments, **named):
        result = function(*arguments, **named)
        return torch.nextafter(result, torch.full_like(result, float("inf"))) if result.is_floating_point() else result

    return larger


torch.add, torch.nn.functional.linear = inexact(torch.add), inexact(torch.nn.functional.linear)
if __name__ == "__main__":
    _, _, _, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")
