"""The arguments of ``headrace broker``, parsed without Typer.

The broker runs for months, and Typer and Rich would use as much memory as the broker itself. So this module parses
valid arguments. All other arguments (help, an unknown option, a missing value) go to ``cli.broker``, which accepts the
same arguments and prints help or an error.
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
    from headrace.settings import BrokerSettings, Settings

__all__ = ["DURABILITIES", "LOG_FORMATS", "BrokerArgs", "parse_broker_args", "run_broker_args"]

DURABILITIES = ("synced", "os")
LOG_FORMATS = ("text", "json")
_LISTEN = "127.0.0.1:9092"
_VARIABLES = ("HEADRACE_BROKER__", "HEADRACE_LOG__LISTEN")

_VALUE_OPTIONS = {
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
class BrokerArgs:
    listen: str | None = None
    """None for the setting ``log.listen``."""
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


def parse_broker_args(arguments: Sequence[str]) -> BrokerArgs | None:
    """Return None if an argument is invalid or requests help."""
    args = BrokerArgs()
    remaining = iter(arguments)
    for argument in remaining:
        if argument in _FLAGS:
            name, flag = _FLAGS[argument]
            setattr(args, name, flag)
            continue
        option, equals, value = argument.partition("=")
        target = _VALUE_OPTIONS.get(option)
        if target is None or (equals and not option.startswith("--")):
            return None
        if not equals:
            next_argument = next(remaining, None)
            if next_argument is None:
                return None
            value = next_argument
        if target == "settings":
            key, separator, setting = value.partition("=")
            if not key or not separator:
                return None
            args.settings[key] = setting
        elif target == "data":
            args.data = Path(value)
        else:
            setattr(args, target, value)
    is_valid = args.durability in DURABILITIES and args.log_format in LOG_FORMATS
    return args if is_valid else None


def _load_settings(args: BrokerArgs) -> Settings | None:
    """Load the settings from the arguments, the environment and ``headrace.toml``.

    Return None if no source can set the address or the backup, so that such a broker does not import the settings.
    """
    options = (args.backup, args.backup_every_ms, args.backup_keep_s, args.backup_key_file)
    if options == (None, None, None, None) and not (
        any(name.startswith(_VARIABLES) for name in os.environ) or Path("headrace.toml").is_file()
    ):
        return None
    from headrace.settings.loader import Flag, load

    return load(
        [
            Flag("log.listen", args.listen, "--listen"),
            Flag("broker.backup", args.backup, "--backup"),
            Flag("broker.backup_every_ms", args.backup_every_ms, "--backup-every-ms"),
            Flag("broker.backup_keep_s", args.backup_keep_s, "--backup-keep-s"),
            Flag("broker.backup_key_file", args.backup_key_file, "--backup-key-file"),
        ]
    ).settings


def _listen(args: BrokerArgs, loaded: Settings | None) -> str:
    if loaded is not None:
        return loaded.log.listen
    return _LISTEN if args.listen is None else args.listen


def _backup_key(backup: BrokerSettings | None) -> bytes | None:
    if backup is None or backup.backup is None:
        return None
    from headrace.broker.backup.manifest import read_key

    return read_key(backup)


def run_broker_args(args: BrokerArgs) -> int:
    from headrace.broker.main import run_broker

    try:
        loaded = _load_settings(args)
        backup = None if loaded is None else loaded.broker
        return run_broker(
            listen=_listen(args, loaded),
            data=args.data,
            advertise=args.advertise,
            durability=args.durability,
            open_to_anyone=args.open_to_anyone,
            auto_create_topics=args.auto_create_topics,
            log_format=args.log_format,
            metrics=args.metrics,
            settings=args.settings,
            backup=None if backup is None else backup.backup,
            backup_every_ms=10_000 if backup is None else backup.backup_every_ms,
            backup_keep_s=604_800 if backup is None else backup.backup_keep_s,
            backup_key=_backup_key(backup),
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
