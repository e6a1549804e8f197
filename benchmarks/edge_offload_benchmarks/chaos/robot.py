"""The robot of a chaos run, a process of its own: a camera, the managed network, one line of JSON per result.

Started by :mod:`edge_offload_benchmarks.chaos.rig`. Lines on standard output: ``{"ready": ...}`` once frames flow, one
per result, and ``{"summary": ...}`` when standard input closes. Times are of the machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import List, Optional

MODEL = "edge_offload_benchmarks.chaos.net:factory"
#: Modes that frames may be sent to the server in; results of ``split`` agree with the local ones within its tolerance.
REMOTE = ("server", "split", "replay")
#: Of the camera.
FPS = 20.0
#: Networks that take turns.
TASKS = ("people", "scene")


def main() -> int:
    """Run until standard input closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--keys", required=True)
    parser.add_argument("--fps", type=float, default=FPS)
    parser.add_argument("--slowdown", type=float, default=30.0)
    parser.add_argument("--size", type=int, help="pixels of a picture's side")
    parser.add_argument("--mode", choices=REMOTE, default=REMOTE[0])
    parser.add_argument("--managers", type=int, default=1, help="2: another one asks for other modes, frame by frame")
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--carry", action="store_true", help="every frame leaves at once, with the newest result")
    parser.add_argument("--accuracy", type=float, help="asks for a promise of this bound; with --carry")
    parser.add_argument("--turns", action="store_true", help="two networks, which take turns at the server")
    args = parser.parse_args()

    from edge_offload.execute.threads import pin
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client
    from edge_offload.link.transport.prober import Prober
    from edge_offload.mode import Mode
    from edge_offload.modes.device import DeviceModule, DeviceRunner, installed_device
    from edge_offload_benchmarks.chaos import net
    from edge_offload_benchmarks.chaos.network import Camera, Network, Ways, write_record
    from edge_offload_benchmarks.chaos.turns import Turns

    pin(threads=1)
    pictures = net.make_pictures(args.size or net.SIZE)
    module = net.factory()
    remote = Mode(args.mode)
    ways = Ways(args.fps, remote, args.slowdown, args.managers, args.in_flight, args.carry, args.accuracy)
    turns = Turns(list(TASKS)) if args.turns else None

    def connect_network(task: str) -> Network:
        """A network with a connection of its own, as each node has one."""
        network: Optional[Network] = None

        def changed(*state: object) -> None:
            if network is not None:
                network.link_changed(*state)

        def notified(*told: object) -> None:
            if network is not None:
                network.notified(*told)

        client = Client(args.server, keys=KeyStore(args.keys), on_state=changed, on_notify=notified)
        network = Network(task, MODEL, module, pictures, client, ways, turns)
        return network

    networks: List[Network] = [connect_network(task) for task in (TASKS if args.turns else ("",))]
    if remote is Mode.REPLAY:
        device = installed_device()
        assert device is not None, "the rig starts this mode by 'edge-offload exec'"
        client = networks[0].client
        networks[0].offloaded.add_runner(DeviceRunner(remote, DeviceModule(device, module, client)))
    probers = []
    for network in networks:
        network.client.start()
        probers.append(Prober(network.client).start())
    local_s = [seconds for network in networks for seconds in network.measure_local()]
    cameras = [Camera(args.fps, network.offer_frame) for network in networks]
    write_record(ready=True, local_s=local_s, t=time.monotonic(), tasks=[network.task for network in networks])
    for network in networks:
        network.start()
    if turns is not None:
        turns.start()
    for camera in cameras:
        camera.start()
    sys.stdin.read()
    for camera in cameras:
        camera.stop()
    ended = {network.task: network.end() for network in networks}
    write_record(
        summary={task: counts for task, (_, counts) in ended.items()},
        probes=sum(prober.sent for prober in probers),
        clock="; ".join(filter(None, (network.client.clock.warning for network in networks))),
        followed=sum(network.followed for network in networks),
        turns=None if turns is None else turns.count_untaken,
    )
    if turns is not None:
        turns.close()
    for network, prober in zip(networks, probers):
        prober.close()
        network.client.close()
        network.offloaded.close()
    failed = [line for network in networks for line in network.failed]
    print("\n".join(failed), file=sys.stderr)
    return 0 if all(drained for drained, _ in ended.values()) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
