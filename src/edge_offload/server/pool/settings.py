"""Settings of a pool's server: the pool's address, the network, its profile and its deadline."""

from __future__ import annotations

import json
import pathlib
from dataclasses import asdict, dataclass
from typing import Any, Dict, Tuple

from edge_offload import places
from edge_offload.errors import BadInput
from edge_offload.server.pool import cluster, profile


@dataclass(frozen=True)
class PoolSettings:
    """Settings that the front gives its driver.

    Attributes:
        address: of the pool.
        endpoint: ipc socket of the front.
        model: name in the profiles.
        slo_s: latency of an answer (seconds).
        profiles: folder with latencies, bytes and cuts.
        folder: with the token.
        margin, partitions, bandwidth, link_share: as ``pool plan`` takes them; the bandwidth in Gbit/s.
        threads: of each member.
    """

    address: str
    endpoint: str
    model: str
    slo_s: float
    profiles: str
    folder: str
    margin: float = 0.4
    partitions: int = 3
    bandwidth: float = 10.0
    link_share: float = 0.8
    threads: int = 1

    def to_json(self) -> str:
        """Return JSON for :meth:`parse`."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> PoolSettings:
        """Return the settings of :meth:`to_json`."""
        return cls(**json.loads(text))


def make_settings(address: str, model: str, slo_s: float, profiles: str, keys: str, threads: int) -> PoolSettings:
    """Return the settings of a server, without an endpoint yet.

    Raises:
        BadInput: a part is missing, the profile lacks the model, the deadline cannot be met, no token or certificates.
        Unsupported: no Ray, or too old a Python.
    """
    cluster.check_available()
    if not model or not profiles:
        raise BadInput("a pool needs --model and --profiles", remedy="measure with 'edge-offload pool profile'")
    folder = pathlib.Path(keys) if keys else places.pool_folder()
    cluster.check_keys(address, folder)
    settings = PoolSettings(
        address, "", model, slo_s, str(pathlib.Path(profiles).resolve()), str(folder.resolve()), threads=threads
    )
    check_slo(load_network(settings)[0], slo_s)
    return settings


def load_network(settings: PoolSettings) -> Tuple[profile.BlockProfile, Dict[str, Any]]:
    """Return the profile of the model, and the description that members build from.

    Raises:
        BadInput: the folder has no such network, or no cuts of it.
    """
    folder = pathlib.Path(settings.profiles)
    networks = profile.load_profiles(folder)
    if settings.model not in networks:
        raise BadInput(f"{folder} has no network {settings.model}", remedy=f"it has {', '.join(sorted(networks))}")
    try:
        raw = json.loads((folder / "blocks.json").read_text(encoding="utf-8"))[settings.model]
        return networks[settings.model], {"name": settings.model, **raw}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{folder} does not say where {settings.model} is cut", remedy="measure with 'edge-offload pool profile'"
        ) from error


def check_slo(network: profile.BlockProfile, slo_s: float) -> None:
    """Refuse a deadline that a single frame misses on the fastest class.

    Raises:
        BadInput: it does.
    """
    least_s = min(float(table[:, 0].sum()) for shares in network.latency_s.values() for table in shares.values())
    if slo_s < least_s:
        raise BadInput(
            f"--slo {slo_s:g} s is less than one inference of {network.name} takes, {least_s:.3f} s at best",
            remedy="allow more time",
        )
