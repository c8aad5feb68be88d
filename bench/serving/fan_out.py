"""A view that changes all the time, to as many as the server takes: how soon each of them is told of a change, from
when it was due, and what that costs. Beside a limit, and beside a bare broadcast of frames of the same length.

Changes are told at most every 100 ms, to all at the same moment. So half of that is waited for by itself, by ours and
by the broadcast. It counts only if everybody was told every change.
"""

from __future__ import annotations

from bench.serving.crowd import beside, following
from bench.serving.stand import ServeStand

__all__ = ["measure"]

_LIMIT_MS = 250.0
_LIMIT = "a limit of 250 ms, of which up to 100 ms are the coalescing"
_BARE = "a bare broadcast by websockets, frames of the same length, every 100 ms"
_BARE_GOAL = 0.5
_FRAMES = "at most 10 frames/s to each"
_FRAMES_MAX = 10.0


def measure(stand: ServeStand) -> None:
    plan, clients = stand.plan, stand.plan.crowds[-1]
    what = f"fan-out of {plan.changes} changes/s to {clients:,}"
    note = stand.measured.both
    for _ in range(plan.rounds):
        ours = following(stand, clients)
        theirs = beside(stand, clients, ours.frame_bytes)
        note(f"{what}, delivery p50", _LIMIT, ours.p50_ms, _LIMIT_MS, "ms")
        note(f"{what}, delivery p99", _LIMIT, ours.p99_ms, _LIMIT_MS, "ms")
        note(f"{what}, frames to each", _FRAMES, ours.frames, _FRAMES_MAX, "frames/s", None)
        note(f"{what}, delivery p99", _BARE, ours.p99_ms, theirs.p99_ms, "ms", _BARE_GOAL)
        note(f"{what}, server's CPU per second", _BARE, ours.cpu_s, theirs.cpu_s, "CPU s", _BARE_GOAL)
        note(f"{what}, server's memory", _BARE, ours.mb, theirs.mb, "MB", None)
