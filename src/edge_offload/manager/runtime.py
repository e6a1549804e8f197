"""Former place of :class:`edge_offload.runtime.module.OffloadedModule`, until the next release removes it."""

import importlib
import warnings

OffloadedModule = importlib.import_module("edge_offload.runtime.module").OffloadedModule
warnings.warn("import OffloadedModule from edge_offload.runtime.module", DeprecationWarning, stacklevel=2)
