"""What a subscriber costs the server while there are few, and while there are many: it is to be the same.

Each number of them has a server of its own, at the same age, so that what a server remembers of a view is the same.
A server that cannot keep up would tell less often and look cheap; so how often each is told is measured too.
"""

from __future__ import annotations

from bench.serving.crowd import following
from bench.serving.stand import ServeStand

__all__ = ["measure"]

_FLAT = 0.8
_LEAST_KB = 0.1
"""A server may need no more for them."""


def measure(stand: ServeStand) -> None:
    plan = stand.plan
    few, more, many = plan.crowds
    note = stand.measured.both
    for _ in range(plan.rounds):
        found = {clients: following(stand, clients) for clients in plan.crowds}
        cost = {clients: one.cpu_s / clients * 1_000 for clients, one in found.items()}
        name = "server's CPU per second for each thousand subscribers"
        for clients in (more, many):
            note(f"{name}, at {clients:,}", f"the same at {few:,}", cost[clients], cost[few], "CPU s", _FLAT)
        steps = [(few, more), (more, many)]
        cpu = [
            max(1e-4, (found[end].cpu_s - found[begin].cpu_s) / (end - begin) * 1_000) for begin, end in steps
        ]
        kb = [
            max(_LEAST_KB, (found[end].mb - found[begin].mb) / (end - begin) * 1_024) for begin, end in steps
        ]
        peer = f"the same from {few:,} to {more:,}"
        note(
            f"server's CPU per second for a thousand further subscribers, from {more:,} to {many:,}",
            *(peer, cpu[1], cpu[0], "CPU s", _FLAT),
        )
        note(
            f"server's memory for a further subscriber, from {more:,} to {many:,}",
            *(peer, kb[1], kb[0], "KB", _FLAT),
        )
        note(
            f"frames to each of {many:,} subscribers",
            *(f"the same at {few:,}", found[many].frames, found[few].frames, "frames/s", _FLAT),
        )
        note(
            f"delivery p99 to {many:,} subscribers",
            *(f"the same at {few:,}", found[many].p99_ms, found[few].p99_ms, "ms", None),
        )
