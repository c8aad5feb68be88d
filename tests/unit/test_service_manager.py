"""A process reports its state to systemd, and only if systemd asked for it."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.service_manager import ServiceManager


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The address in ``NOTIFY_SOCKET``, and the socket of systemd."""
    name = f"@headrace-{uuid.uuid4().hex}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0") if name.startswith("@") else name)
        listener.settimeout(10)
        yield name, listener


def test_the_state_of_a_process_reaches_systemd(systemd: tuple[str, socket.socket]) -> None:
    address, listener = systemd
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}
    manager = ServiceManager.from_environment(environment)
    assert environment == {}, "a child process must not report itself as ready"
    manager.starting("starting\nflow a")
    manager.ready("flow b has stopped")
    manager.ready()
    manager.starting("too late")
    manager.alive()
    manager.alive()
    manager.stopping()
    messages = [listener.recv(4096).decode() for _ in range(4)]
    assert messages == [
        "STATUS=starting flow a\nEXTEND_TIMEOUT_USEC=60000000",
        "READY=1\nSTATUS=flow b has stopped",
        "WATCHDOG=1",
        "STOPPING=1",
    ]
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.recv(4096)


@pytest.mark.parametrize(
    ("variables", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_for_one_process(variables: dict[str, str], watchdog_s: float | None) -> None:
    manager = ServiceManager.from_environment({"NOTIFY_SOCKET": "/run/notify", **variables})
    assert manager.watchdog_s == watchdog_s


def test_without_systemd_nothing_is_sent() -> None:
    manager = ServiceManager.from_environment({"WATCHDOG_USEC": "1000000"})
    assert (manager.is_listening, manager.watchdog_s) == (False, None)
    manager.starting("x")
    manager.ready()
    manager.alive()
    manager.stopping()


@pytest.mark.parametrize("address", ["/no/such/socket", f"/{'x' * 200}"])
def test_a_socket_that_cannot_be_reached_is_an_error_when_the_process_is_ready(address: str) -> None:
    manager = ServiceManager.from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
    manager.starting("nothing")
    with pytest.raises(ConfigError, match="cannot report to systemd"):
        manager.ready()
    manager.alive()
    manager.stopping()
