"""The former place of :class:`edge_offload.runtime.module.OffloadedModule`; it goes with the next release."""

import importlib
import warnings

OffloadedModule = importlib.import_module("edge_offload.runtime.module").OffloadedModule
warnings.warn("import OffloadedModule from edge_offload.runtime.module", DeprecationWarning, stacklevel=2)
