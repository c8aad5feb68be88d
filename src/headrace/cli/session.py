"""One run of the command: which brokers, with which client properties, and how the answer is to look."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.cli.errors import UsageError
from headrace.cli.output import Output

__all__ = ["DEFAULT_BOOTSTRAP", "Session", "parse_pairs"]

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
TIMEOUT_S = 10.0
_VARIABLES = ("HEADRACE_BOOTSTRAP_SERVERS", "KAFKA_BOOTSTRAP_SERVERS")


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
    named_bootstrap: str | None = None
    """The brokers that somebody has named; None where ``bootstrap`` is the default."""

    @property
    def timeout_s(self) -> float:
        """How long to wait for one answer: the client's own property for it, or ten seconds."""
        given = self.properties.get("socket.timeout.ms", "")
        return int(given) / 1_000 if given.isdecimal() else TIMEOUT_S

    @classmethod
    def begin(
        cls,
        *,
        bootstrap_servers: str | None,
        client_property: Sequence[str],
        as_json: bool,
        quiet: bool,
        verbose: bool,
    ) -> Session:
        """Flag before property before environment before default."""
        properties = parse_pairs(client_property, "-X")
        from_property = properties.pop("bootstrap.servers", None)
        from_environment = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), None)
        named = bootstrap_servers or from_property or from_environment
        out = Output(as_json=as_json, quiet=quiet)
        return cls(named or DEFAULT_BOOTSTRAP, properties, verbose, out, named)
