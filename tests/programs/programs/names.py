"""What all the names of torch.cuda are: the same with and without a device."""

import importlib
import inspect
import pkgutil
import warnings
from typing import Optional

import torch

warnings.simplefilter("ignore")  # some of them are deprecated


def kind(value):
    if inspect.isclass(value):
        return "class"
    return "function" if inspect.isroutine(value) else "module" if inspect.ismodule(value) else "value"


def inherited(value):
    """Whether a class can be inherited from and asked for, and named in an annotation, as imported programs do."""

    class Subclass(value):
        def is_subclass(self):
            pass

    assert Optional[value]
    assert not hasattr(type, "__or__") or value | None
    return issubclass(Subclass, value) and not isinstance(3, value)


modules_of_cuda = [
    module.name for module in pkgutil.iter_modules(torch.cuda.__path__) if not module.name.startswith("_")
]
modules = [torch.cuda, *(importlib.import_module(f"torch.cuda.{name}") for name in modules_of_cuda)]
for module in modules:
    for name in sorted(vars(module)):
        value = getattr(module, name)
        if name.startswith("_"):
            continue
        print(module.__name__, name, kind(value))
        of_cuda = str(getattr(value, "__module__", "")).startswith("torch.cuda")
        if kind(value) == "class" and of_cuda and not name.endswith(("Tensor", "Storage")):
            assert inherited(value), name
