"""One run of the command: which brokers, with which client properties, and how the answer is to look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.errors import UsageError
from headrace.cli.output import Output

if TYPE_CHECKING:
    from headrace.settings.loading import Flag, Loaded

__all__ = ["DEFAULT_BOOTSTRAP", "Session", "parse_pairs"]

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
TIMEOUT_S = 10.0


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """``key=value`` given any number of times; the last one of a key counts."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {pair!r} is not of the form key=value")
        found[key] = value
    return found


@dataclass(slots=True)
class Session:
    bootstrap: str
    properties: dict[str, str]
    verbose: bool
    out: Output = field(repr=False)
    loaded: Loaded
    """What is set, and where."""
    _flags: tuple[Flag, ...]
    _file: Path | None

    @property
    def timeout_s(self) -> float:
        """How long to wait for one answer: the client's own property for it, or ten seconds."""
        given = self.properties.get("socket.timeout.ms", "")
        return int(given) / 1_000 if given.isdecimal() else TIMEOUT_S

    def with_flags(self, *flags: Flag) -> Loaded:
        """The settings under a verb's own options as well."""
        from headrace.settings.loading import load

        return load((*self._flags, *flags), file=self._file)

    @classmethod
    def begin(
        cls,
        *,
        bootstrap_servers: str | None,
        client_property: Sequence[str],
        as_json: bool,
        quiet: bool,
        verbose: bool,
        config: Path | None = None,
    ) -> Session:
        """Flag before property before environment before file before default."""
        from headrace.settings.loading import Flag, load  # Here, so that help need not wait for it.

        properties = parse_pairs(client_property, "-X")
        from_property = properties.pop("bootstrap.servers", None)
        flags = (
            Flag("log.bootstrap_servers", from_property, "-X"),
            Flag("log.bootstrap_servers", bootstrap_servers, "-b"),
            Flag("log.properties", properties, "-X"),
        )
        loaded = load(flags, file=config)
        log = loaded.settings.log
        out = Output(as_json=as_json, quiet=quiet)
        bootstrap = log.bootstrap_servers or DEFAULT_BOOTSTRAP
        return cls(bootstrap, dict(log.properties), verbose, out, loaded, flags, config)
