"""The commands report to systemd when they serve, while they live, and when they stop. tests/cli/test_init.py has the
test of ``headrace run``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from faults.serve.http import Http
from faults.servers.server import Server, free_port
from faults.wait import until
from tests.cli.runner import COMMAND
from tests.cli.systemd import Systemd


@contextlib.contextmanager
def started(systemd: Systemd, *words: str | Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [COMMAND, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **systemd.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def expect_orderly_stop(systemd: Systemd, process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    systemd.wait_for("STOPPING=1")
    until(lambda: process.poll() is not None, "the process ends")


def test_a_broker_is_ready_when_it_accepts_connections(systemd: Systemd, tmp_path: Path) -> None:
    port = free_port()
    listen = ("--listen", f"127.0.0.1:{port}")
    with started(systemd, "broker", *listen, "--data", tmp_path / "log", folder=tmp_path) as process:
        assert systemd.wait_for("READY=1") == ["READY=1\nSTATUS="]
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            pass
        assert systemd.wait_for("WATCHDOG=1") == ["WATCHDOG=1"]
        expect_orderly_stop(systemd, process)


def test_a_server_is_ready_when_it_responds(systemd: Systemd, embedded: Server, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "nothing.py").write_text("from headrace import App\n\napp = App('nothing')\n")
    words = ("serve", "nothing:app", "-b", embedded.bootstrap, "--listen", f"127.0.0.1:{port}")
    with started(systemd, *words, "--data", tmp_path / "data", folder=tmp_path) as process:
        assert systemd.wait_for("READY=1") == ["READY=1\nSTATUS="]
        assert Http(port).get("/healthz").expect(200) == {"alive": True}
        assert systemd.wait_for("WATCHDOG=1") == ["WATCHDOG=1"]
        expect_orderly_stop(systemd, process)


def test_a_follower_is_ready_when_every_view_is_built(
    systemd: Systemd, embedded: Server, tmp_path: Path
) -> None:
    (tmp_path / "tables.py").write_text(
        "from dataclasses import dataclass\n"
        "from headrace import App\n\n"
        "app = App('tables')\n\n\n"
        "@dataclass\nclass Row:\n    key: str\n\n\n"
        "app.view('rows', app.table('systemd-rows', Row, key='key'))\n"
    )
    topic = ["topic", "create", "systemd-rows", "-b", embedded.bootstrap, "--set", "cleanup.policy=compact"]
    words = ("view", "follow", "tables:app", "-b", embedded.bootstrap, "--data", tmp_path / "data")
    with started(systemd, *words, folder=tmp_path) as process:
        assert "building rows" in systemd.wait_for("STATUS=building rows")[0]
        subprocess.run([COMMAND, *topic], check=True, capture_output=True)
        assert systemd.wait_for("READY=1")[-1] == "READY=1\nSTATUS="
        expect_orderly_stop(systemd, process)


def test_a_command_without_a_reachable_systemd_ends_with_the_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, "broker", "--listen", "127.0.0.1:0", "--data", tmp_path / "log"],
        env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "nothing")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "cannot report to systemd at NOTIFY_SOCKET" in done.stderr
