"""Registry entry of a model."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

from torch import nn

from edge_offload.models.base import PersonEstimator

Scalar = Union[bool, int, float, str]


@dataclass(frozen=True)
class Entry:
    """Description and factory of a model.

    Attributes:
        name: its name in commands and parameters.
        kind: ``people`` (a :class:`PersonEstimator`), ``scene`` (a plain module from occupancy to labels), or
            ``classifier`` (a plain module on float [n, 3, h, w]).
        summary: one line.
        source: where the weights come from.
        licence: of the weights.
        build: makes the model from the options, all of them given.
        options: names of the scalar options with their defaults; nothing else is accepted.
        path_options: the options that name local files. A server must not accept these from a peer.
        fetch: downloads the weights into the cache and returns their path; None: nothing to fetch.
        cached: returns that path without a download.
        shipped: file of weights that come with edge_offload; None: there are none.
        weights_bytes: size of the cached file, 0 if there is none.
        download_bytes: what ``fetch`` transfers, 0 if nothing.
        sha256: checksum of the tensors in the cached file (:func:`edge_offload.cache.tensors_hash`).
    """

    name: str
    kind: str
    summary: str
    source: str
    licence: str
    build: Callable[[Dict[str, Any]], Union[PersonEstimator, nn.Module]]
    options: Mapping[str, Scalar] = field(default_factory=dict)
    path_options: Tuple[str, ...] = ()
    fetch: Optional[Callable[[], pathlib.Path]] = None
    cached: Optional[Callable[[], pathlib.Path]] = None
    shipped: Optional[pathlib.Path] = None
    weights_bytes: int = 0
    download_bytes: int = 0
    sha256: str = ""
