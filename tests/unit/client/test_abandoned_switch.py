"""When the process that switches a flow counts as dead, so that another one may cancel the switch."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from headrace.client.generations_writer import is_abandoned, process_name
from headrace.model.generations import Entry, FlowGenerations

HOST = socket.gethostname()
UNTIL_MS = 1_000_000


def switched_by(name: str) -> FlowGenerations:
    entry = Entry(1, "f.progress", "t", "a function", "first start", 1)
    return FlowGenerations("f", "app", "t", 1, 1, (entry,)).with_switch(1, name, UNTIL_MS)


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# The clock of another host may be behind.
@pytest.mark.parametrize(("name", "grace_ms"), [("elsewhere:1:run", 15_000), (process_name(), 0)])
def test_a_switch_is_abandoned_if_it_was_not_extended_in_time(name: str, grace_ms: int) -> None:
    assert not is_abandoned(switched_by(name), UNTIL_MS + grace_ms)
    assert is_abandoned(switched_by(name), UNTIL_MS + grace_ms + 1)


def test_a_live_process_of_this_host_has_a_minute_longer() -> None:
    generations = switched_by(f"{HOST}:{os.getppid()}:run")
    assert not is_abandoned(generations, UNTIL_MS + 60_000)
    assert is_abandoned(generations, UNTIL_MS + 60_001)


def test_a_switch_is_abandoned_at_once_if_its_process_has_ended() -> None:
    assert is_abandoned(switched_by(f"{HOST}:{dead_pid()}:run"), 0)


def test_an_earlier_process_with_the_same_pid_has_ended() -> None:
    assert is_abandoned(switched_by(f"{HOST}:{os.getpid()}:earlier"), 0)
