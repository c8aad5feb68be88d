"""The port to whoever runs the parts of the app beside the server, and knows more of them than the log tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.client.progress_log import Progress
from headrace.ops.alerts.record import AlertRecord
from headrace.serve.proofs.prover import Prover
from headrace.views.status import Status

__all__ = ["Failure", "Live", "LiveFlow", "LiveLook", "LiveView"]


@dataclass(frozen=True, slots=True)
class Failure:
    """In the user's terms, at the user's own line where that is known."""

    text: str
    hint: str
    at_ms: int
    code: str = ""
    file: str = ""
    line: int | None = None

    def told(self) -> dict[str, object]:
        return {
            "text": self.text,
            "file": self.file or None,
            "line": self.line,
            "hint": self.hint,
            "at_ms": self.at_ms,
            "code": self.code,
        }


@dataclass(frozen=True, slots=True)
class LiveFlow:
    state: str
    """starting, running, waiting, stopped or failed."""
    why: str = ""
    progress: Progress | None = None
    """None before it has opened its generation."""
    took_ms: float | None = None
    """The last batch, from its plan to its commit."""
    failure: Failure | None = None
    """The last, also where it has healed since."""


@dataclass(frozen=True, slots=True)
class LiveView:
    status: Status
    failure: Failure | None = None
    """What has ended its follower."""
    verified: str = ""
    """How the last proof went, and when; empty where none was made."""
    differs: bool = False
    """Whether any proof has found it not to be as derived."""


@dataclass(frozen=True, slots=True)
class LiveLook:
    uptime_s: float
    phase: str = ""
    """What it waits for while it starts; empty once all parts are begun."""
    flows: Mapping[str, LiveFlow] = field(default_factory=dict)
    views: Mapping[str, LiveView] = field(default_factory=dict)
    """What is not in these two is not run here."""
    firing: Sequence[AlertRecord] | None = None
    """None where it does not watch for alerts."""
    failures: Mapping[str, Failure] = field(default_factory=dict)
    """Of all other parts, by their names."""


class Live(Prover, Protocol):
    """For any thread; what it tells is from memory, and never waits for the log. A proof does, and takes its time."""

    @property
    def feed(self) -> str:
        """What writes events beside it, as it was named; empty where nothing does."""

    def look(self) -> LiveLook: ...

    def plan(self, flow: str, chars_max: int) -> str | None:
        """What Spark made of the flow when it last ran a batch; asks Spark. None where it has run none."""

    def rules(self) -> Mapping[str, str] | None:
        """The alerts' rules that are in force, by name; None where it does not watch."""
