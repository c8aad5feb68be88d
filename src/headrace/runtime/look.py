"""What a running app is doing, at a moment: for a display, a line, or a program."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["AlertLook", "FlowLook", "Look", "ViewLook"]


@dataclass(frozen=True, slots=True)
class FlowLook:
    name: str
    state: str
    why: str
    generation: int
    batch: int | None
    rows_per_s: float
    """Taken in, since the last look."""
    rows_in: int
    rows_out: int
    lag: int
    """Records of its inputs that it has not read yet; in real time, of which it has not noted yet that it has."""
    watermark_us: int | None
    state_rows: int
    late: int
    dead: int
    latency: str = "batch"


@dataclass(frozen=True, slots=True)
class ViewLook:
    name: str
    state: str
    why: str
    applied: int
    per_s: float
    lag: int
    dead: int
    foreign: int = 0
    """Records in its flow's topic that the flow has not written."""
    repeats: int = 0
    """Rows that a flow in real time has written again, and that were left out."""
    verified: str = ""
    """How the last proof went, and when; empty where none was made."""
    differs: bool = False
    """Whether any proof of this run has found it not to be as derived."""


@dataclass(frozen=True, slots=True)
class AlertLook:
    """One that fires."""

    alert: str
    text: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Look:
    at_s: float
    flows: list[FlowLook] = field(default_factory=list)
    views: list[ViewLook] = field(default_factory=list)
    alerts: list[AlertLook] = field(default_factory=list)
