"""Two TUN devices and the way from the robot to the server through them.

The robot connects to a loopback address 127.A.B.2, B odd, that belongs to no one: a route leads from there into the
robot's device. The emulator gives the packet to the server's device, from 127.A.b.1 with b = B - 1 flipped in its last
bit, so that answers come back through that device. Loopback addresses need no keys made on purpose, and the route to
them leaves the machine's other traffic alone. Devices and routes go with the process that made them.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import struct
import subprocess
from typing import List, Tuple

from edge_offload.errors import BadInput, Unsupported

TUN = "/dev/net/tun"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 1500
#: Packets that a device holds for the emulator when it has no processor.
DEVICE_QUEUE = 10_000
#: Turned in an address, these bits make the robot's address the one that the server sees.
FLIP = "0.0.1.0"
ENDS = ("robot", "server")
REMEDY = "be root, or run all of it in 'unshare --user --map-root-user --net'"


class Network:
    """The devices of one emulated link.

    Args:
        far: address to which robots connect, 127.A.B.2 with an odd B.
        namespaces: put the robot's device and the server's into a new network namespace each; they end with
            :meth:`close`, and with this process. Without, both devices are where this process is.

    Raises:
        BadInput: ``far`` cannot be used, or is in use.
        Unsupported: this process may make no devices.
    """

    def __init__(self, far: str, namespaces: bool = False) -> None:
        first, second = _split_address(far)
        self.far = far
        self.devices = f"eo{first}-{second}r", f"eo{first}-{second}s"
        self._base = f"127.{first}.{second - 1}"
        self._seen = f"127.{first}.{second}"
        self._robots = 0
        self._spaces: List[subprocess.Popen[str]] = []
        self._open: List[int] = []
        try:
            for _ in self.devices if namespaces else ():
                self._spaces.append(_new_namespace())
            for end, name in zip(ENDS, self.devices):
                self._open.append(_open_tun(name))
                if namespaces:
                    space = self._spaces[ENDS.index(end)]
                    _run_command("ip", "link", "set", name, "netns", str(space.pid))
                    _run_command(*self.command_prefix(end), "ip", "link", "set", "lo", "up")
                _run_command(
                    *self.command_prefix(end), "sh", "-c", f"echo 1 > /proc/sys/net/ipv4/conf/{name}/route_localnet"
                )
                _run_command(
                    *self.command_prefix(end),
                    "ip",
                    "link",
                    "set",
                    name,
                    "mtu",
                    str(MTU),
                    "txqueuelen",
                    str(DEVICE_QUEUE),
                    "up",
                )
            self._set_route(f"{self._seen}.0/24", self.devices[1], f"{self._base}.254", "server")
            self.robot = self.roam()
        except BaseException:
            self.close()
            raise

    @property
    def descriptors(self) -> Tuple[int, int]:
        """Descriptors of the robot's device and of the server's."""
        return self._open[0], self._open[1]

    def roam(self) -> str:
        """Give the robot another address: new connections have it, what is sent from the old one is lost."""
        self._robots = self._robots % 200 + 1
        self.robot = f"{self._base}.{self._robots if self._robots < 2 else self._robots + 1}"
        self._set_route(f"{self.far}/32", self.devices[0], self.robot, "robot")
        return self.robot

    def abort_connections(self, port: int) -> None:
        """Abort the server's ends of all connections at ``port``; their resets go over the link."""
        ends = ("sport", "=", f":{port}", "and", "dst", f"{self._seen}.0/24")
        _run_command(*self.command_prefix("server"), "ss", "--kill", "--tcp", "--numeric", *ends)

    def command_prefix(self, end: str) -> List[str]:
        """Words before a command that make it run where ``end`` is, ``robot`` or ``server``."""
        return ["nsenter", "--net", "--target", str(self._spaces[ENDS.index(end)].pid)] if self._spaces else []

    def close(self) -> None:
        """Remove what was made."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open = []
        for space in self._spaces:
            space.communicate()
        self._spaces = []

    def _set_route(self, target: str, device: str, source: str, end: str) -> None:
        command = ("ip", "route", "replace", target, "dev", device, "table", "local", "src", source)
        _run_command(*self.command_prefix(end), *command)


def _split_address(far: str) -> Tuple[int, int]:
    parts: Tuple[int, ...] = ()
    with contextlib.suppress(ValueError):
        parts = tuple(ipaddress.IPv4Address(far).packed)
    if len(parts) != 4 or parts[0] != 127 or parts[2] % 2 == 0 or parts[3] != 2:
        remedy = "give 127.A.B.2 with an odd B, such as 127.77.1.2"
        raise BadInput(f"{far} cannot be the address of an emulated link at the packet level", remedy=remedy)
    return parts[1], parts[2]


def _open_tun(name: str) -> int:
    try:
        descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unsupported(f"packets need {TUN}: {error.strerror}", remedy=REMEDY) from error
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        os.close(descriptor)
        if error.errno == 16:
            raise BadInput(f"another emulated link has {name}", remedy="use another address, 127.77.3.2") from error
        raise Unsupported(f"packets need a TUN device: {error.strerror}", remedy=REMEDY) from error
    return descriptor


def _new_namespace() -> subprocess.Popen[str]:
    """A process that does nothing in a network namespace of its own until its input ends, as it does with ours."""
    command = ["unshare", "--net", "sh", "-c", "echo up; read line"]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise Unsupported(f"unshare does not run: {error.strerror}", remedy="apt install util-linux") from error
    assert process.stdout is not None
    first = process.stdout.readline().strip()
    if first != "up":
        process.communicate()
        raise Unsupported(f"no network namespace: {first}", remedy=REMEDY)
    return process


def _run_command(*command: str) -> None:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        remedy = "apt install iproute2 util-linux"
        raise Unsupported(f"packets need the command {command[0]}: {error.strerror}", remedy=remedy) from error
    if done.returncode:
        raise Unsupported(f"'{' '.join(command)}' failed: {' '.join(done.stdout.split())}", remedy=REMEDY)
