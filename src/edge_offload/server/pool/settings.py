"""What a server of a pool is told: the pool's address, the network, its profile and its deadline."""

from __future__ import annotations

import json
import pathlib
from dataclasses import asdict, dataclass
from typing import Any, Dict, Tuple

from edge_offload.errors import BadInput
from edge_offload.server.pool import cluster, profile


@dataclass(frozen=True)
class Settings:
    """What the front tells its driver.

    Attributes:
        address: of the pool.
        endpoint: ipc socket of the front.
        model: name in the profiles.
        slo_s: seconds from a request to its answer.
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
        """What :meth:`parse` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Settings:
        """The settings in what :meth:`to_json` wrote."""
        return cls(**json.loads(text))


def settings_of(address: str, model: str, slo_s: float, profiles: str, keys: str, threads: int) -> Settings:
    """The settings of a server; without an endpoint yet.

    Raises:
        BadInput: a part is missing, the profile lacks the model, the deadline cannot be met, no token or certificates.
        Unsupported: no Ray, or too old a Python.
    """
    cluster.check_available()
    if not model or not profiles:
        raise BadInput("a pool needs --model and --profiles", remedy="measure with 'edge-offload pool profile'")
    folder = pathlib.Path(keys) if keys else cluster.default_folder()
    cluster.check_keys(address, folder)
    found = Settings(
        address, "", model, slo_s, str(pathlib.Path(profiles).resolve()), str(folder.resolve()), threads=threads
    )
    check_slo(network_of(found)[0], slo_s)
    return found


def network_of(settings: Settings) -> Tuple[profile.Network, Dict[str, Any]]:
    """The profile of the model, and what members build.

    Raises:
        BadInput: the folder has no such network, or says not where it is cut.
    """
    folder = pathlib.Path(settings.profiles)
    known = profile.load(folder)
    if settings.model not in known:
        raise BadInput(f"{folder} has no network {settings.model}", remedy=f"it has {', '.join(sorted(known))}")
    try:
        raw = json.loads((folder / "blocks.json").read_text(encoding="utf-8"))[settings.model]
        return known[settings.model], {"name": settings.model, **raw}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{folder} does not say where {settings.model} is cut", remedy="measure with 'edge-offload pool profile'"
        ) from error


def check_slo(network: profile.Network, slo_s: float) -> None:
    """Refuse a deadline that one frame misses even alone on the fastest class.

    Raises:
        BadInput: so it is.
    """
    least_s = min(float(table[:, 0].sum()) for of in network.latency_s.values() for table in of.values())
    if slo_s < least_s:
        raise BadInput(
            f"--slo {slo_s:g} s is less than one inference of {network.name} takes, {least_s:.3f} s at best",
            remedy="allow more time",
        )
