"""The interface to the app's parts (flows and views) that run in the same process as the server.

These parts report more than the log contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headrace.client.progress import Progress
from headrace.follow.context import FollowStatus
from headrace.ops.alerts.alert_log import AlertRecord
from headrace.ops.lag.monitor import LagMonitor
from headrace.serve.proofs.prover import Prover

__all__ = ["Failure", "FailureDocument", "FlowStatus", "FollowerStatus", "RuntimeProbe", "RuntimeStatus"]


class FailureDocument(msgspec.Struct, frozen=True):
    text: str
    file: str | None
    line: int | None
    hint: str
    at_ms: int
    code: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of a part, with the line of the user's source code if it is known."""

    text: str
    hint: str
    at_ms: int
    code: str = ""
    file: str = ""
    line: int | None = None

    def document(self) -> FailureDocument:
        return FailureDocument(self.text, self.file or None, self.line, self.hint, self.at_ms, self.code)


@dataclass(frozen=True, slots=True)
class FlowStatus:
    state: str
    """One of starting, running, waiting, stopped and failed."""
    why: str = ""
    progress: Progress | None = None
    """None before the flow has opened its generation."""
    took_ms: float | None = None
    """Duration of the last batch in milliseconds, from planning to commit."""
    failure: Failure | None = None
    """The last failure, even if the flow has recovered since."""


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    status: FollowStatus
    failure: Failure | None = None
    """The error that ended the follower."""
    verified: str = ""
    """Result and time of the last proof (comparison with the log); empty if no proof was run."""
    differs: bool = False
    """True if any proof found a difference."""


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    uptime_s: float
    phase: str = ""
    """What start-up waits for; empty once all parts have started."""
    flows: Mapping[str, FlowStatus] = field(default_factory=dict)
    views: Mapping[str, FollowerStatus] = field(default_factory=dict)
    """``flows`` and ``views`` contain only those that run in this process."""
    firing: Sequence[AlertRecord] | None = None
    """None if this process does not check alert rules."""
    failures: Mapping[str, Failure] = field(default_factory=dict)
    """Failures of all other parts, by part name."""


class RuntimeProbe(Prover, Protocol):
    """Thread-safe. Except for a proof and ``plan``, the methods read memory and never wait for the log or Spark."""

    @property
    def feed(self) -> str:
        """The name of the feed, which writes events into the app's topics; empty without a feed."""

    @property
    def lag_monitor(self) -> LagMonitor: ...

    def status(self) -> RuntimeStatus: ...

    def plan(self, flow: str, chars_max: int) -> str | None:
        """Query Spark for the plan of the flow's last batch. Return None before the first batch."""

    def rules(self) -> Mapping[str, str] | None:
        """Return the alert rules by name, or None if this process does not check alert rules."""
