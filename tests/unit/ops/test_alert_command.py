"""The command for alerts: its input, its limits, and that it never delays the caller."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.ops.alerts.alert_log import AlertRecord
from headrace.ops.alerts.command import AlertCommand, parse_command

RECORD = AlertRecord(
    "shop", "backlog", "flow", "price", "firing", 2, 1, "lag > 10", "flow price: 11 records", {}
)


@contextlib.contextmanager
def command(script: str, *, timeout_s: float = 30.0) -> Iterator[tuple[AlertCommand, list[str]]]:
    """Run a Python script as the command. At the end, wait until all commands have ended."""
    warnings: list[str] = []
    alert_command = AlertCommand([sys.executable, "-S", "-c", script], timeout_s, warnings.append)
    yield alert_command, warnings
    alert_command.close(30.0)


def test_a_command_gets_the_alert_as_json_on_its_standard_input(tmp_path: Path) -> None:
    script = f"import sys, pathlib; pathlib.Path({str(tmp_path / 'alert')!r}).write_text(sys.stdin.read())"
    with command(script) as (alert_command, warnings):
        alert_command.submit(RECORD)
    assert json.loads((tmp_path / "alert").read_text()) == {**RECORD.row(), "measures": {}}
    assert (alert_command.counts, warnings) == ({"ok": 1}, [])


def test_a_failed_command_is_counted_and_reported_with_its_error_output() -> None:
    with command("import sys; sys.stderr.write('no network' + '!' * 1_000_000); sys.exit(3)") as run:
        alert_command, warnings = run
        alert_command.submit(RECORD)
    assert alert_command.counts == {"failed": 1}
    (warning,) = warnings
    assert "alert backlog (flow price) failed: exit code 3: no network!!!" in warning
    assert len(warning) < 3_000


def test_a_command_beyond_its_time_is_killed_with_its_children(tmp_path: Path) -> None:
    """The child keeps the lock of a file while it lives."""
    locked = tmp_path / "locked"
    locked.touch()
    script = (
        "import fcntl, subprocess, sys, time\n"
        f"file = open({str(locked)!r}); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'], pass_fds=[file.fileno()])\n"
        "sys.stderr.close(); time.sleep(600)\n"
    )
    with command(script, timeout_s=2.0) as (alert_command, warnings):
        alert_command.submit(RECORD)
    assert alert_command.counts == {"timeout": 1}
    assert "did not end within 2 s and was killed" in warnings[0]
    import fcntl

    with locked.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def test_alerts_beyond_the_limit_are_dropped_without_a_wait(tmp_path: Path) -> None:
    released = tmp_path / "released"
    script = f"import pathlib, time\nwhile not pathlib.Path({str(released)!r}).exists(): time.sleep(0.01)"
    warnings: list[str] = []
    alert_command = AlertCommand([sys.executable, "-S", "-c", script], 60.0, warnings.append)
    submitted = threading.Event()

    def submit_all() -> None:
        for _ in range(110):
            alert_command.submit(RECORD)
        submitted.set()

    threading.Thread(target=submit_all).start()
    assert submitted.wait(30.0)
    dropped = alert_command.counts["dropped"]
    assert 6 <= dropped <= 10
    assert "100 commands are waiting already" in warnings[0]
    alert_command.close(0.0)
    released.touch()


def test_a_command_that_cannot_be_run_is_refused_before_the_start() -> None:
    assert parse_command("sh -c 'exit 0' \"a b\"") == ["sh", "-c", "exit 0", "a b"]
    for text in ("", "  ", "'", "/no/such/command --x", "no-such-command-anywhere"):
        with pytest.raises(ConfigError, match=r"alerts\.exec"):
            parse_command(text)
