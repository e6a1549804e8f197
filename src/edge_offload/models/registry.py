"""The registry: every model by name, built from its name and a few scalar options on robot and server alike."""

from __future__ import annotations

import functools
import importlib
import pathlib
import traceback
from typing import Any, Callable, Dict, Mapping, Tuple, Union

from torch import nn

from edge_offload import places
from edge_offload.cache import tensors_hash
from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.models import checkpoint, torchscript
from edge_offload.models.base import Estimator, PersonEstimator
from edge_offload.models.entry import Entry, Scalar
from edge_offload.models.onnxfile import reading

#: Option of every user-defined factory: a safetensors file whose tensors are loaded into its module.
WEIGHTS = "weights"


def entries() -> Dict[str, Entry]:
    """Return all models that come with edge_offload, by name."""
    from edge_offload.models import kapao, movenet, sconet

    return {entry.name: entry for entry in (*movenet.entries(), *kapao.entries(), *sconet.entries(), *_zoo_entries())}


def _zoo_entries() -> Tuple[Entry, ...]:
    from edge_offload.models import zoo

    def build(name: str, options: Dict[str, Any]) -> nn.Module:
        return zoo.build_network(name, **options)

    return tuple(
        Entry(
            name=name,
            kind="classifier",
            summary=f"{what} of torchvision, for split, parity and latency work",
            source="random weights from a seed, calibrated",
            licence="BSD-3-Clause (torchvision's code)",
            build=functools.partial(build, name),
            options={"size": 224, "seed": 0},
        )
        for name, what in zoo.NETWORKS.items()
    )


def is_user_model(name: str) -> bool:
    """Return whether ``name`` is a user's model: ``package.module:factory``, a TorchScript or an ONNX file.

    The first two run code when they are built. A server must not build such a name for a peer unless its operator has
    listed it.
    """
    return ":" in name or is_file(name)


def is_file(name: str) -> bool:
    """Return whether ``name`` is the path of a network file: TorchScript or ONNX."""
    return torchscript.is_script(name) or reading.is_onnx(name)


def _file_checksum(name: str) -> str:
    return reading.checksum(name) if reading.is_onnx(name) else torchscript.checksum(name)


def name_on_wire(name: str) -> str:
    """Return a model's name in requests: of a file its name without the folder."""
    return pathlib.PurePath(name).name if is_file(name) else name


def options_on_wire(name: str, options: Mapping[str, Scalar]) -> Dict[str, Scalar]:
    """Return a model's options in requests: of a file also its checksum.

    Raises:
        BadInput: the file cannot be read.
    """
    return {**options, "sha256": _file_checksum(name)} if is_file(name) else dict(options)


def check_user_model(name: str) -> None:
    """Check that a user's factory can be imported, or a user's file be read.

    Raises:
        BadInput: it cannot.
    """
    if is_file(name):
        _file_checksum(name)
    else:
        user_factory(name)


def build_estimator(name: str, **options: Scalar) -> PersonEstimator:
    """Build the person estimator ``name`` with its weights loaded.

    Args:
        name: a name of :func:`entries`, a user's ``package.module:factory``, or an ONNX file that finds people's
            keypoints.
        options: scalars only (they are sent to the server); the entry lists them with their defaults.

    Raises:
        BadInput: no such model or option, a value of the wrong type, or weights that are not available.
    """
    built = build_model(name, options)
    if reading.is_onnx(name):
        from edge_offload.models.onnxfile import estimators

        assert isinstance(built, estimators.OnnxModule)
        return estimators.OnnxPeople(name, built)
    if not isinstance(built, PersonEstimator):
        raise BadInput(
            f"model {name!r} is a {type(built).__name__}, not a PersonEstimator",
            remedy="detector_node runs detectors and plain modules of your own (node:=detector_node)",
        )
    return built


def build_module(name: str, **options: Scalar) -> nn.Module:
    """Build the module of model ``name``: in eval mode, weights loaded, on the CPU. Arguments as `build_estimator`.

    A user's factory may return a plain ``nn.Module`` or an ``Estimator``.
    """
    built = build_model(name, options)
    module = built.module if isinstance(built, Estimator) else built
    return module.eval()


def build_model(name: str, options: Mapping[str, Scalar]) -> Union[Estimator, nn.Module]:
    """Build model ``name``, an estimator or a module. Arguments and errors as `build_estimator`."""
    for key, value in options.items():
        if not isinstance(value, (bool, int, float, str)):
            raise BadInput(f"model {name!r}: option {key} is a {type(value).__name__}", remedy="use a scalar")
    if is_user_model(name):
        return _build_user_model(name, options)
    table = entries()
    if name not in table:
        remedy = f"use one of {', '.join(table)}, package.module:factory or net.onnx"
        raise BadInput(f"no model named {name!r}", remedy)
    entry = table[name]
    return entry.build(_check_options(entry, options))


def _check_options(entry: Entry, options: Mapping[str, Scalar]) -> Dict[str, Scalar]:
    """Update the entry's defaults with ``options``; an integer is accepted for a float."""
    merged = dict(entry.options)
    for key, value in options.items():
        if key not in merged:
            raise BadInput(f"model {entry.name!r} has no option {key!r}", remedy=f"it has: {', '.join(merged)}")
        expected = type(merged[key])
        if expected is float and type(value) is int:
            value = float(value)
        if type(value) is not expected:
            raise BadInput(
                f"model {entry.name!r}: option {key}={value!r} is {type(value).__name__}, expected {expected.__name__}"
            )
        merged[key] = value
    return merged


def user_factory(name: str) -> Callable[..., Any]:
    """Import a user's factory ``package.module:factory``, which runs its module's code.

    Raises:
        BadInput: there is no such module or attribute, its import fails, or it cannot be called.
    """
    module_name, _, attribute = name.partition(":")
    remedy = "write package.module:factory, importable here (installed, or its folder in PYTHONPATH)"
    try:
        factory: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except Exception as error:  # the module's code may raise anything
        raise BadInput(f"cannot import model {name!r}: {_describe_exception(error)}", remedy) from error
    if not callable(factory):
        raise BadInput(f"model {name!r} is a {type(factory).__name__}, which cannot be called", remedy)
    made: Callable[..., Any] = factory
    return made


def _build_user_model(name: str, options: Mapping[str, Scalar]) -> Union[Estimator, nn.Module]:
    given = dict(options)
    if reading.is_onnx(name):
        from edge_offload.models.onnxfile import estimators

        return estimators.load_module(name, given)
    if torchscript.is_script(name):
        sha256 = given.pop("sha256", "")
        if given:
            raise BadInput(f"model {name!r} is a file and has no option {', '.join(given)}", remedy="leave it out")
        return torchscript.load_script(name, str(sha256))
    weights = given.pop(WEIGHTS, "")
    factory = user_factory(name)
    try:
        built = factory(**given)
    except EdgeOffloadError:
        raise
    except Exception as error:
        raise BadInput(
            f"factory {name!r} failed: {_describe_exception(error)}", "correct it, or its options"
        ) from error
    if not isinstance(built, (Estimator, nn.Module)):
        raise BadInput(f"factory {name!r} returned a {type(built).__name__}", remedy="return nn.Module")
    if weights:
        _load_weights(built.module if isinstance(built, Estimator) else built, places.expand(str(weights)))
    return built


def _load_weights(module: nn.Module, path: pathlib.Path) -> None:
    """Load all weights of a user's module from a safetensors file.

    Raises:
        BadInput: the file cannot be read, or is of another network.
    """
    tensors, _ = checkpoint.read(path)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"{path} does not fit: {reason[:300]}", remedy="name the weights of this network") from None


def _describe_exception(error: Exception) -> str:
    """Format an exception of the user's code in one line, with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({pathlib.Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    ours = isinstance(error, (ImportError, AttributeError)) and frames and "importlib" in frames[-1].filename
    return " ".join(f"{type(error).__name__}: {error}".split()) + ("" if ours else place)


def state_hash(module: nn.Module) -> str:
    """Return the hex sha256 over the names, dtypes, shapes and bytes of the module's state dict.

    It does not depend on the device. The module's code is not part of it: the link compares releases and fingerprints.
    """
    return tensors_hash(module.state_dict())
