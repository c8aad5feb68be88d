"""A ``headrace broker …`` command line, read by hand.

The broker runs for months and its memory is counted; the machinery that gives the other commands their help
and completion costs as much memory as the broker itself. So a line on which everything is in order is read
here, and any other (help, an unknown option, a missing value) takes the long way through ``cli.broker``,
which accepts the same lines and says what is wrong with the rest.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.settings import BrokerSettings

__all__ = ["DURABILITIES", "LOG_FORMATS", "BrokerLine", "read_broker_line", "run_broker_line"]

DURABILITIES = ("synced", "os")
LOG_FORMATS = ("text", "json")

_VALUES = {
    "--listen": "listen",
    "-l": "listen",
    "--data": "data",
    "-d": "data",
    "--advertise": "advertise",
    "--durability": "durability",
    "--log-format": "log_format",
    "--metrics": "metrics",
    "--backup": "backup",
    "--backup-every-ms": "backup_every_ms",
    "--backup-keep-s": "backup_keep_s",
    "--backup-key-file": "backup_key_file",
    "--set": "settings",
}
_FLAGS = {
    "--anyone-may-read-and-write": ("open_to_anyone", True),
    "--auto-create-topics": ("auto_create_topics", True),
    "--no-auto-create-topics": ("auto_create_topics", False),
}


@dataclass(slots=True)
class BrokerLine:
    listen: str = "127.0.0.1:9092"
    data: Path = Path("headrace-data")
    advertise: str | None = None
    durability: str = "synced"
    open_to_anyone: bool = False
    auto_create_topics: bool = True
    log_format: str = "text"
    metrics: str | None = None
    backup: str | None = None
    backup_every_ms: str | None = None
    backup_keep_s: str | None = None
    backup_key_file: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


def read_broker_line(words: Sequence[str]) -> BrokerLine | None:
    """The line's meaning, or None if it is not plainly in order."""
    line = BrokerLine()
    remaining = iter(words)
    for word in remaining:
        if word in _FLAGS:
            name, flag = _FLAGS[word]
            setattr(line, name, flag)
            continue
        option, equals, value = word.partition("=")
        target = _VALUES.get(option)
        if target is None or (equals and not option.startswith("--")):
            return None
        if not equals:
            following = next(remaining, None)
            if following is None:
                return None
            value = following
        if target == "settings":
            key, given, setting = value.partition("=")
            if not key or not given:
                return None
            line.settings[key] = setting
        elif target == "data":
            line.data = Path(value)
        else:
            setattr(line, target, value)
    in_order = line.durability in DURABILITIES and line.log_format in LOG_FORMATS
    return line if in_order else None


def _backup_of(line: BrokerLine) -> BrokerSettings | None:
    """Options of the line, above the environment and ``headrace.toml``; ``None`` where nobody speaks of a backup, so
    that a broker without one need not load what reads settings.
    """
    given = (line.backup, line.backup_every_ms, line.backup_keep_s, line.backup_key_file)
    if given == (None, None, None, None) and not (
        any(name.startswith("HEADRACE_BROKER__") for name in os.environ) or Path("headrace.toml").is_file()
    ):
        return None
    from headrace.settings.loading import Flag, load

    return load(
        [
            Flag("broker.backup", line.backup, "--backup"),
            Flag("broker.backup_every_ms", line.backup_every_ms, "--backup-every-ms"),
            Flag("broker.backup_keep_s", line.backup_keep_s, "--backup-keep-s"),
            Flag("broker.backup_key_file", line.backup_key_file, "--backup-key-file"),
        ]
    ).settings.broker


def _key_of(backup: BrokerSettings | None) -> bytes | None:
    if backup is None or backup.backup is None:
        return None
    from headrace.broker.backup.authenticity import read_key

    return read_key(backup)


def run_broker_line(line: BrokerLine) -> int:
    from headrace.broker.main import run_broker

    try:
        backup = _backup_of(line)
        return run_broker(
            listen=line.listen,
            data=line.data,
            advertise=line.advertise,
            durability=line.durability,
            open_to_anyone=line.open_to_anyone,
            auto_create_topics=line.auto_create_topics,
            log_format=line.log_format,
            metrics=line.metrics,
            settings=line.settings,
            backup=None if backup is None else backup.backup,
            backup_every_ms=10_000 if backup is None else backup.backup_every_ms,
            backup_keep_s=604_800 if backup is None else backup.backup_keep_s,
            backup_key=_key_of(backup),
        )
    except HeadraceError as error:
        from headrace.cli.errors import exit_code_of
        from headrace.cli.output import show_error

        show_error(str(error))
        return exit_code_of(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        sys.stdout.flush()
