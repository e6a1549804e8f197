"""A pool is refused with the reason, keeps its token to itself, and serves robots whatever happens to its members."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata
from types import SimpleNamespace
from typing import Any, Iterator, List, Sequence

import numpy as np
import psutil
import pytest
import torch

from edge_offload.cli import main
from edge_offload.errors import BadInput, Unsupported
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from edge_offload.runtime.module import OffloadedModule
from edge_offload.server.pool import certificates, cluster, gateway, member, profile, settings
from edge_offload.server.pool.seats import BEAT_TIMEOUT_S, DriverBeats, share_seats
from edge_offload.server.pool.settings import PoolSettings
from edge_offload.server.server import OffloadServer
from edge_offload.server.settings import Compute, Models
from edge_offload_benchmarks.ports import lasting_port
from tests.server.pool.pool_nets import a_network
from tests.server.pool.stage_nets import chain
from tests.server.server_rig import until

ROOT = pathlib.Path(__file__).parents[3]
CHAIN = "tests.server.pool.stage_nets:chain"
X = [torch.zeros(1, 3, 32, 32)]
CLI = [sys.executable, "-m", "edge_offload.cli", "pool"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.unit
def test_an_old_python_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(cluster.sys, "version_info", (3, 8, 10))
    with pytest.raises(Unsupported, match=r"3\.10 or newer.*2\.10"):
        cluster.check_available()


@pytest.mark.unit
@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.8 is refused before")
def test_an_old_ray_and_none_are_refused(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda _name: "2.51.1")
    assert "2.52 or newer" in cluster.unavailable_reason()

    def none(_name: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", none)
    assert "edge_offload[pool]" in cluster.unavailable_reason()


@pytest.mark.unit
def test_the_token_is_private_and_always_required(tmp_path):
    folder = tmp_path / "pool"
    with pytest.raises(BadInput, match="no token"):
        cluster.make_environment(folder)
    cluster.make_token(folder)
    token = folder / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    before = token.read_text()
    cluster.make_token(folder)
    assert token.read_text() == before
    made = cluster.make_environment(folder, {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "other"})
    assert (made["RAY_AUTH_MODE"], made["RAY_AUTH_TOKEN_PATH"]) == ("token", str(token))
    assert "RAY_AUTH_TOKEN" not in made
    assert before not in made.values(), "what is in an environment can be read"
    token.chmod(0o644)
    with pytest.raises(BadInput, match="others can read"):
        cluster.make_environment(folder)


@pytest.mark.unit
def test_another_machine_is_not_spoken_to_without_tls(tmp_path, monkeypatch):
    cluster.make_token(tmp_path)
    with pytest.raises(BadInput, match="in the clear"):
        cluster.start_member("203.0.113.9:5790", cluster.Machine("P4", 1), tmp_path)
    monkeypatch.setattr(cluster, "check_available", lambda: None)
    for speaks in (
        cluster.connect_ray,
        lambda address, folder: settings.make_settings(address, "m", 1.0, ".", str(folder), 1),
    ):
        with pytest.raises(BadInput, match="in the clear"):
            speaks("203.0.113.9:5790", tmp_path)
    monkeypatch.undo()
    with pytest.raises(BadInput, match="no address of this machine"):
        cluster.start_head(5790, cluster.Machine(), tmp_path, "203.0.113.9")


@pytest.mark.unit
def test_each_machine_has_a_certificate_of_the_pools_authority(tmp_path, monkeypatch):
    x509 = pytest.importorskip("cryptography.x509")
    head, member = tmp_path / "head", tmp_path / "member"
    cluster.make_token(head)
    certificates.prepare_certificates(head, True)
    assert cluster.make_environment(head, {})["RAY_USE_TLS"] == "1"
    assert all((head / name).stat().st_mode & 0o777 == 0o600 for name in certificates.FILES)
    before = (head / "tls.crt").read_bytes()
    certificates.prepare_certificates(head, True)
    assert (head / "tls.crt").read_bytes() == before
    shutil.copytree(head, member)
    monkeypatch.setattr(certificates, "list_addresses", lambda: {"198.51.100.7", "127.0.0.1"})
    certificates.prepare_certificates(member, False)
    certificate = x509.load_pem_x509_certificate((member / "tls.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(each) for each in names.get_values_for_type(x509.IPAddress)} == {"198.51.100.7", "127.0.0.1"}
    authority = x509.load_pem_x509_certificate((member / "ca.crt").read_bytes())
    ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
    authority.public_key().verify(
        certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(certificate.signature_hash_algorithm)
    )
    (member / "ca.key").chmod(0o640)
    with pytest.raises(BadInput, match="others can read"):
        certificates.prepare_certificates(member, False)


@pytest.mark.unit
def test_workers_of_another_release_are_reported_with_both_versions(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: {"ray": "2.60.0"}.get(name, "0.1.0"))
    versions = cluster.list_versions()
    assert cluster.explain_difference(versions) == ""
    assert "ray 2.59.0, and here is 2.60.0" in cluster.explain_difference({**versions, "ray": "2.59.0"})
    assert "edge_offload 0.0.9" in cluster.explain_difference({**versions, "edge_offload": "0.0.9"})
    assert "python of another release" in cluster.explain_difference({"edge_offload": "0.1.0"})


@pytest.mark.unit
def test_drivers_of_one_pool_have_different_gpus_and_inherit_those_of_a_lost_one():
    seats = [(f"n{node}", gpu, number, 0) for node, gpu in enumerate(("L4", "P4", "P4")) for number in range(3)]
    others = DriverBeats("b")
    assert others.live_drivers({"a": b"1", "b": b"1"}, 0.0) == ["a", "b"]
    parts = [share_seats(seats, driver, ("a", "b")) for driver in ("a", "b")]
    assert sorted([*parts[0], *parts[1]]) == sorted(seats)
    assert {seat[1] for seat in parts[1]} == {"L4", "P4"}
    assert others.live_drivers({"a": b"2", "b": b"2"}, 3.0) == ["a", "b"]
    assert others.live_drivers({"a": b"2", "b": b"9"}, 3.0 + BEAT_TIMEOUT_S) == ["b"]
    assert share_seats(seats, "b", ["b"]) == sorted(seats, key=lambda seat: (seat[1], seat))


@pytest.mark.unit
def test_a_deadline_below_one_inference_is_refused():
    network = a_network(random.Random(0), "net", ("H", "L"), 4, 2, 1)
    least_s = float(network.latency_s["H"][1][:, 0].sum())
    settings.check_slo(network, 2 * least_s)
    with pytest.raises(BadInput, match="less than one inference of net"):
        settings.check_slo(network, 1e-6)


@pytest.mark.unit
def test_a_second_head_on_a_port_is_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=r"may be a head already.*join that one"):
            cluster.start_head(port, cluster.Machine(), tmp_path)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("full", "message"), [("/tmp", "sockets and logs need.*make room"), ("/dev/shm", "says 256.*smaller --store-mb")]
)
def test_full_disks_are_reported_before_ray_starts(full, message, monkeypatch):
    free = {place: (1 << 20 if place == full else 1 << 40) for place in ("/tmp", "/dev/shm")}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free[place]))
    with pytest.raises(BadInput, match=message):
        cluster.check_room(256)
    free[full] = 1 << 40
    cluster.check_room(256)


@pytest.mark.unit
def test_a_full_object_store_is_reported_with_the_remedy():
    full = RuntimeError("ray::Member.run()\nray.exceptions.ObjectStoreFullError: Failed to put object")
    assert "larger --store-mb (" in cluster.explain_failure(full)
    no_disk = RuntimeError("ray::Member.run()\nray.exceptions.OutOfDiskError: Local disk is full")
    assert "larger --store-mb or make room in /tmp" in cluster.explain_failure(no_disk)
    assert cluster.explain_failure(ValueError("a\nb")) == "ValueError: b"


@pytest.mark.unit
def test_differing_clocks_are_reported_before_tls_fails(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    cluster.make_token(tmp_path)
    certificates.prepare_certificates(tmp_path, True)

    class Early(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime(2001, 1, 1, tzinfo=tz)

    monkeypatch.setattr(certificates.datetime, "datetime", Early)
    with pytest.raises(BadInput, match=r"clock says 2001-01-01.*set the clock"):
        certificates.prepare_certificates(tmp_path, False)


@pytest.mark.unit
def test_workers_with_other_weights_or_without_the_network_are_reported(tmp_path, monkeypatch):
    model = {"name": CHAIN, "options": {}, "state_hash": "0" * 64, "cuts": {}}
    monkeypatch.delenv(member.TABLE, raising=False)
    with pytest.raises(BadInput, match=r"other weights of.*same weights everywhere"):
        member.Member(model, "L4", 1, 1)
    network = a_network(random.Random(0), "net", ("H", "L"), 4, 2, 1)
    profile.save_profiles(tmp_path, {"net": network})
    monkeypatch.setenv(member.TABLE, str(tmp_path))
    with pytest.raises(BadInput, match="no times of net on P4"):
        member.Member({**model, "name": "net"}, "P4", 1, 1)


@pytest.mark.unit
def test_a_worker_is_ready_only_if_the_store_of_its_machine_is(monkeypatch):
    worker = member.Member.__new__(member.Member)
    stored: List[Any] = []
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True, put=stored.append))
    assert worker.ready() == os.getpid()
    assert len(stored) == 1, "a member whose store is gone ends here"


@pytest.mark.unit
def test_a_class_that_the_profile_lacks_is_reported_with_those_that_it_has():
    assert "no class P4, but H, L" in gateway._explain_unknown("P4", {"L": 1, "H": 1})


@pytest.mark.unit
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--gpus", "0"), "--gpus is 1 to 1024"),
        (("--store-mb", "1"), "--store-mb at least 80"),
        (("--times", "0"), "--times is a positive number"),
    ],
)
def test_what_no_machine_brings_in_is_one_line(given, message, capsys):
    assert main(["pool", "join", "127.0.0.1:9", "--class", "L4", *given]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.unit
@pytest.mark.parametrize("text", [":1", "a:b", "a:99999"])
def test_addresses_are_checked(text):
    with pytest.raises(BadInput, match="address of a pool"):
        cluster.parse_address(text)


@pytest.mark.process
def test_a_server_without_a_pool_imports_nothing_of_ray():
    program = "import sys, edge_offload.server.server, edge_offload.commands.serve; " + (
        "print([name for name in sys.modules if name.split('.')[0] == 'ray' or 'server.pool' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Bot:
    """A robot of the small network."""

    def __init__(self, address: str, keys: pathlib.Path, opens: bool = True) -> None:
        self.module = chain()
        limits = TimeoutLimits(floor_s=20.0, cap_s=20.0, first_s=20.0)
        self.client = Client(address, keys=KeyStore(keys), on_state=lambda *told: self.offloaded.link_changed(*told))
        self.offloaded = OffloadedModule(
            CHAIN, self.module, self.client, example=X, hedging=False, device="cpu", patience=limits
        )
        self.client.start()
        until(lambda: not opens or self.offloaded.unavailable_reason(Mode.SERVER, X) is None, 150)

    def run(self, seed: int = 0, mode: Mode = Mode.SERVER) -> Any:
        inputs = [torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed))]
        return self.offloaded.run_inference(inputs, mode)


@pytest.mark.process
def test_without_its_driver_a_server_refuses_and_the_robot_computes(tmp_path):
    cluster.make_token(tmp_path / "pool")
    settings = PoolSettings("127.0.0.1:9", "", CHAIN, 1.0, str(tmp_path), str(tmp_path / "pool"))
    with OffloadServer(compute=CPU, models=Models([CHAIN]), keys=KeyStore(tmp_path / "keys"), gpus=settings) as server:
        bot = Bot(server.address, tmp_path / "keys", opens=False)
        until(lambda: "driver is not there" in str(bot.run()[1].fallback_reason), 60)
        outputs, report = bot.run()
        assert report.mode is Mode.LOCAL
        assert torch.equal(outputs[0], bot.run()[0][0])
        assert "driver is not there" in server.engine
        bot.client.close()


CPU = Compute("cpu", threads=1)


def test_a_server_has_one_way_to_share_a_gpu(tmp_path):
    settings = PoolSettings("127.0.0.1:9", "", CHAIN, 1.0, str(tmp_path), str(tmp_path / "pool"))
    with pytest.raises(BadInput, match=r"a pool and promises are two ways to share a GPU; choose one"):
        OffloadServer(compute=CPU, promises=True, gpus=settings)


#: Of shared memory, for the object stores of a head and its members (MB).
STORES_MB = 400


def why_not() -> str:
    """Why no pool can be begun here; empty: it can."""
    try:
        cluster.check_available()
        cluster.check_room(STORES_MB)
    except (Unsupported, BadInput) as error:
        return str(error)
    return ""


needs_ray = pytest.mark.skipif(bool(why_not()), reason=why_not())


class Cluster:
    """Processes of ``edge-offload pool``."""

    def __init__(self, folder: pathlib.Path, host: str = "127.0.0.1") -> None:
        self.keys, self.profiles = folder / "pool", folder / "profiles"
        self.address = f"{host}:{lasting_port()}"
        self._started: List[Any] = []
        head = ["head", "--host", host, "--port", self.address.split(":")[1], "--store-mb", "80"]
        self.head = self.begin([*head, "--pool-keys", str(self.keys)], "pool on port")

    def begin(self, command: List[str], first_line: str, launcher: Sequence[str] = ()) -> Any:
        process = subprocess.Popen([*launcher, *CLI, *command], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self._started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(first_line), line
        return process

    def join(self, gpu: str, *more: str, launcher: Sequence[str] = ()) -> Any:
        options = ["--class", gpu, "--store-mb", "80", "--pool-keys", str(self.keys), *more]
        return self.begin(["join", self.address, *options], "joined", launcher)

    def close(self) -> None:
        for process in reversed(self._started):
            if process.poll() is None:
                process.terminate()
            process.wait(60)
        shutil.rmtree(cluster.socket_folder(int(self.address.split(":")[1])), ignore_errors=True)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("ray"))
    yield made
    made.close()


@needs_ray
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_pool_serves_robots_and_outlives_a_member(pool, tmp_path, monkeypatch):
    profile = ["pool", "profile", CHAIN, "--input", "float32[1,3,32,32]", "--batches", "2", "--blocks", "4"]
    for gpu in ("L4", "P4"):
        assert main([*profile, "--class", gpu, "--device", "cpu", "--out", str(pool.profiles)]) == 0
    first, second = (pool.join(gpu, "--device", "cpu") for gpu in ("L4", "P4"))
    settings = PoolSettings(pool.address, "", CHAIN, 5.0, str(pool.profiles), str(pool.keys))
    keys = tmp_path / "keys"
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    with OffloadServer(compute=CPU, models=Models([CHAIN]), keys=KeyStore(keys), gpus=settings) as server:
        bot = Bot(server.address, keys)

        def count_workers() -> int:
            return sum(stage["workers_there"] for stage in server.gpus.get("stages", []))

        until(lambda: count_workers() >= 2, 120, lambda: str(server.gpus))
        for seed in range(10):
            outputs, report = bot.run(seed)
            assert (report.mode, report.engine[:10]) == (Mode.SERVER, "eager pool"), report.fallback_reason
            assert torch.equal(outputs[0], bot.run(seed, Mode.LOCAL)[0][0])
        for child in psutil.Process(second.pid).children(recursive=True):
            child.kill()
        reports = []
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s and (len(reports) < 20 or reports[-1].mode is not Mode.SERVER):
            reports.append(bot.run(len(reports))[1])
            time.sleep(0.05)
        assert reports[-1].mode is Mode.SERVER, server.gpus
        assert first.poll() is None
        counts = server.gpus
        assert counts["answered"] + counts["refused"] <= counts["requests"]
        bot.client.close()


#: Two members; the second is to take what the first has not made yet, and is asked whether it is there.
WAITS = """
import pathlib, queue, sys, time
from edge_offload.server.pool import cluster
from edge_offload.server.pool.seats import ActorPool
ray = cluster.connect_ray(sys.argv[1], pathlib.Path(sys.argv[2]))
happened = queue.Queue()
model = {"name": "net", "options": {}, "state_hash": "", "cuts": {}}
seats = ActorPool(ray, model, 1, 1, lambda *told: happened.put(told), "test")
(node,) = [each.name for each in cluster.list_nodes(ray) if each.gpu == "H"]
for number in range(2):
    seats.find_or_start((node, "H", number, 0), time.monotonic())
actors = []
while len(actors) < 2:
    what, about = happened.get(timeout=60)
    assert what == "seated", (what, about)
    actors.append(about[1])
ray.get([actor.ready.remote() for actor in actors])
slow = actors[0].run.options(num_returns=2).remote((1, 0, 4), 1, [])
waits = actors[1].run.options(num_returns=1).remote((1, 0, 4), 1, slow[1])
ray.get(actors[1].ready.remote(), timeout=60)
print("answers before" if not ray.wait([slow[0], waits], timeout=0)[0] else "answers after", flush=True)
for actor in actors:
    ray.kill(actor)
"""


@needs_ray
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_member_that_waits_for_tensors_goes_on_with_what_is_behind(pool, tmp_path):
    profile.save_profiles(tmp_path, {"net": a_network(random.Random(0), "net", ("H", "L"), 4, 2, 1)})
    times = 20 / float(profile.load_profiles(tmp_path)["net"].stage_seconds("H", 1, 0, 4)[0])
    member = pool.join("H", "--gpus", "2", "--emulated", str(tmp_path), "--times", repr(times))
    command = [sys.executable, "-c", WAITS, pool.address, str(pool.keys)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    member.terminate()
    assert "answers before" in done.stdout.splitlines(), done.stdout + done.stderr[-2000:]


@needs_ray
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.release
@pytest.mark.timeout(240)
def test_an_allocation_refused_by_the_object_store_is_reported_to_the_robot_with_the_remedy(tmp_path, monkeypatch):
    """Two stages, of which the first passes more than a store of 80 MB holds; there is no room on the disk either."""
    network = a_network(random.Random(0), CHAIN, ("H", "L"), 2, 1, 1)
    seconds = {"H": [[1e-3], [1.0]], "L": [[1.0], [1e-3]]}
    tables = {gpu: {1: np.array(each)} for gpu, each in seconds.items()}
    profile.save_profiles(
        tmp_path / "profiles", {CHAIN: replace(network, latency_s=tables, cut_bytes=np.array([100e6]))}
    )
    model = {"options": {}, "state_hash": "", "cuts": {}}
    (tmp_path / "profiles" / "blocks.json").write_text(json.dumps({CHAIN: model}), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    monkeypatch.setitem(ENVIRONMENT, "RAY_local_fs_capacity_threshold", "0.0001")
    with contextlib.ExitStack() as stack:
        pool = Cluster(tmp_path)
        stack.callback(pool.close)
        for gpu in seconds:
            pool.join(gpu, "--emulated", str(tmp_path / "profiles"))
        settings = PoolSettings(pool.address, "", CHAIN, 20.0, str(tmp_path / "profiles"), str(pool.keys))
        keys = tmp_path / "keys"
        server = stack.enter_context(
            OffloadServer(compute=CPU, models=Models([CHAIN]), keys=KeyStore(keys), gpus=settings)
        )
        bot = Bot(server.address, keys, opens=False)
        stack.callback(bot.client.close)
        until(lambda: "object store" in str(bot.run()[1].fallback_reason), 120, lambda: str(server.gpus))
        _, report = bot.run()
        assert report.mode is Mode.LOCAL
        assert "the object store of a member is full: join with a larger --store-mb" in str(report.fallback_reason)


@needs_ray
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nothing_is_served_without_the_token(pool, tmp_path):
    cluster.make_token(tmp_path)
    done = subprocess.run(
        [*CLI, "status", pool.address, "--pool-keys", str(tmp_path)], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode != 0
    assert "no pool at" in done.stderr
    assert "members" not in done.stdout


@needs_ray
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_between_machines_who_has_no_certificate_of_the_pool_gets_nothing(tmp_path):
    link = Link()
    with contextlib.ExitStack() as stack:
        stack.callback(link.close)
        made = Cluster(tmp_path, link.near)
        stack.callback(made.close)
        stranger, imposter = (tmp_path / name for name in ("stranger", "imposter"))
        for folder in (stranger, imposter):
            folder.mkdir(mode=0o700)
            shutil.copy(made.keys / "token", folder / "token")  # the right one
        certificates.prepare_certificates(imposter, True)  # of an authority of its own

        def status(keys: pathlib.Path) -> Any:
            command = [*CLI, "status", made.address, "--pool-keys", str(keys)]
            return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)

        assert "in the clear" in status(stranger).stderr
        assert link.speaks_plainly(int(made.address.split(":")[1])) in ("", "15"), "at most an alert of TLS"
        refused = status(imposter).stderr.splitlines()
        assert len(refused) == 1, "a line, and not what Ray aborts with"
        assert f"no pool at {made.address} with certificates like those in" in refused[0]
        done = status(made.keys)
        assert done.returncode == 0, done.stderr
        assert "0 members" in done.stdout


class Link:
    """This machine and a network namespace beside it, which stands for another machine."""

    def __init__(self) -> None:
        number = os.getpid() % 250
        self.near, far, self._name, device = f"10.78.{number}.1", f"10.78.{number}.2", f"eot{os.getpid()}", "eot0"
        self._device = f"eot{os.getpid()}"[:14]
        for arguments in (
            f"netns add {self._name}",
            f"link add {self._device} type veth peer name {device} netns {self._name}",
            f"addr add {self.near}/24 dev {self._device}",
            f"link set {self._device} up",
            f"-n {self._name} addr add {far}/24 dev {device}",
            f"-n {self._name} link set {device} up",
            f"-n {self._name} link set lo up",
        ):
            if shutil.which("ip") is None or self._ip(arguments).returncode != 0:
                self.close()
                pytest.skip("no network namespace can be made here (ip netns, as root)")

    def _ip(self, arguments: str, *command: str) -> Any:
        return subprocess.run(["ip", *arguments.split(), *command], capture_output=True, text=True, env=ENVIRONMENT)

    def speaks_plainly(self, port: int) -> str:
        """The first byte (hexadecimal) of what the head answers there to who asks by HTTP/2 without TLS."""
        program = (
            "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5); s.settimeout(5); "
            "s.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))\n"
            "try: print(s.recv(100)[:1].hex())\nexcept ConnectionError: pass"
        )
        done = self._ip(f"netns exec {self._name}", sys.executable, "-c", program, self.near, str(port))
        assert done.returncode == 0, done.stderr
        return str(done.stdout).strip()

    def close(self) -> None:
        """Take both away."""
        if shutil.which("ip") is not None:
            self._ip(f"netns del {self._name}")
            self._ip(f"link del {self._device}")


@needs_ray
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nothing_of_a_head_that_is_killed_stays(tmp_path):
    made = Cluster(tmp_path)
    children = psutil.Process(made.head.pid).children(recursive=True)
    assert any("gcs_server" in " ".join(each.cmdline()) for each in children)
    made.head.kill()
    made.head.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    for each in alive:
        each.kill()
    assert not alive


@needs_ray
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_another_cluster_on_the_machine_is_not_disturbed(pool, tmp_path):
    head = psutil.Process(pool.head.pid)
    of_the_first = {each.pid for each in [head, *head.children(recursive=True)]}
    second = Cluster(tmp_path)
    of_the_second = psutil.Process(second.head.pid).children(recursive=True)
    second.close()
    assert not any(each.is_running() for each in of_the_second)
    assert of_the_first <= {each.pid for each in [head, *head.children(recursive=True)]}
