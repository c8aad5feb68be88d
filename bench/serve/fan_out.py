"""A changing view and as many subscribers as the server accepts: the delivery latency from the time when a change is
due, and the server's cost. Both are compared with a limit, and with a bare broadcast of frames of the same length.

Both servers send changes to all subscribers at most every 100 ms, so by design a change waits 50 ms on average. A run
counts only if every subscriber received every change.
"""

from __future__ import annotations

from bench.serve.context import ServeContext
from bench.serve.crowd import measure_broadcast, measure_headrace

__all__ = ["measure"]

_LIMIT_MS = 250.0
_LIMIT = "a limit of 250 ms, including up to 100 ms of coalescing"
_BARE = "a bare broadcast by websockets, frames of the same length, every 100 ms"
_BARE_GOAL = 0.5
_FRAMES = "at most 10 frames/s per subscriber"
_FRAMES_MAX = 10.0


def measure(context: ServeContext) -> None:
    plan, clients = context.plan, context.plan.crowds[-1]
    title = f"fan-out of {plan.changes} changes/s to {clients:,}"
    note = context.figures.add_comparison
    for _ in range(plan.rounds):
        ours = measure_headrace(context, clients)
        theirs = measure_broadcast(context, clients, ours.frame_bytes)
        note(f"{title}, delivery p50", _LIMIT, ours.p50_ms, _LIMIT_MS, "ms")
        note(f"{title}, delivery p99", _LIMIT, ours.p99_ms, _LIMIT_MS, "ms")
        note(f"{title}, frames per subscriber", _FRAMES, ours.frames, _FRAMES_MAX, "frames/s", None)
        note(f"{title}, delivery p99", _BARE, ours.p99_ms, theirs.p99_ms, "ms", _BARE_GOAL)
        note(f"{title}, server's CPU per second", _BARE, ours.cpu_s, theirs.cpu_s, "CPU s", _BARE_GOAL)
        note(f"{title}, server's memory", _BARE, ours.mb, theirs.mb, "MB", None)
