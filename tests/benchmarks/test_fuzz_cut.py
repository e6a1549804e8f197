"""An attacker whose connection the server cuts goes on with the next one: it must not wait in its send for ever."""

from __future__ import annotations

import random
import socket
import threading

from edge_offload.link.security.keys import KeyStore
from edge_offload_benchmarks.fuzzing import peers as fuzz_peers


def test_a_send_on_a_connection_that_was_cut_ends_the_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz_peers, "CUT_S", 0.2)
    monkeypatch.setattr(fuzz_peers.Babbler, "_make_nonsense", lambda self, epoch, number: [b"nonsense"])
    keys = KeyStore(tmp_path)
    many = 10_000_000  # never sent: the connection is cut long before
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        babbler = fuzz_peers.Babbler(address, keys.ensure_pair("server").public, keys.ensure_pair("client"),
                                     random.Random(1))  # fmt: skip
        sent = []
        attack = threading.Thread(target=lambda: sent.append(babbler.send_batch(many)), daemon=True)
        attack.start()
        attack.join(60)
        assert not attack.is_alive(), "it waits for a connection that nobody dials"
    assert sent[0] < many
    assert babbler.cut == 1
    babbler.close()
