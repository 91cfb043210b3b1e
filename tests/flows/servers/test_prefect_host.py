"""The host of a server: it starts one that died again, gives up on one that never answered, and ends with its users."""

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys

import psutil
import pytest

from flows.servers.prefect_host import write_server
from tests.flows.checkout import REPOSITORY
from tests.waiting import wait_for

SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1])), reuse_port=False) as server:
    while True:
        server.accept()[0].close()
        open("asked", "a").write("x")
"""


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture
def hosted(tmp_path):
    """A host with a user, of a small server that stands for Prefect's: folder, port, host, the user's lock."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    write_server(tmp_path, 0, f"http://127.0.0.1:{port}/api")
    started = []

    def start(*command):
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "flows.servers.prefect_host", str(tmp_path), "0", str(port), *command],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                start_new_session=True,
            )
        )
        return started[-1]

    with (tmp_path / "users").open("ab") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield tmp_path, port, start, users
    for process in started:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()


def test_a_server_that_died_is_started_again_at_its_address(hosted):
    folder, port, start, users = hosted
    host = start(sys.executable, "-c", SERVER, str(port))
    wait_for((folder / "asked").exists)  # the host has seen that it answers
    for _ in range(2):
        (server,) = psutil.Process(host.pid).children()
        server.kill()
        wait_for(lambda server=server: json.loads((folder / "server.json").read_text())["pid"] not in (0, server.pid))
        record = json.loads((folder / "server.json").read_text())
        assert record["url"] == f"http://127.0.0.1:{port}/api"
        wait_for(lambda: listens(port))
        assert [child.pid for child in psutil.Process(host.pid).children()] == [record["pid"]]
    fcntl.flock(users, fcntl.LOCK_UN)
    assert host.wait(60) == 0
    assert not (folder / "server.json").exists()
    assert not listens(port)


def test_a_server_that_never_answered_is_given_up(hosted):
    folder, _, start, _ = hosted
    host = start(sys.executable, "-c", "open('tries', 'a').write('x'); raise SystemExit(3)")
    assert host.wait(60) == 0
    assert (folder / "tries").read_text() == "x"
    assert not (folder / "server.json").exists()
