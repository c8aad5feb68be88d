"""The cost of a subscriber among few subscribers, and among many. Both costs should be equal.

Each number of subscribers has its own server of the same age, so that each server has the same history. A server that
cannot keep up would send less often and seem cheap, so the rate of frames is measured too.
"""

from __future__ import annotations

from bench.serve.context import ServeContext
from bench.serve.crowd import measure_headrace

__all__ = ["measure"]

_GOAL = 0.8
_MIN_KB = 0.1
"""Used instead of a smaller or negative difference of two measurements."""


def measure(context: ServeContext) -> None:
    plan = context.plan
    few, more, many = plan.crowds
    note = context.figures.add_comparison
    for _ in range(plan.rounds):
        figures_of = {clients: measure_headrace(context, clients) for clients in plan.crowds}
        cost = {clients: figures.cpu_s / clients * 1_000 for clients, figures in figures_of.items()}
        name = "server's CPU per second for each thousand subscribers"
        for clients in (more, many):
            note(
                f"{name}, at {clients:,}",
                f"the same with {few:,} subscribers",
                cost[clients],
                cost[few],
                "CPU s",
                _GOAL,
            )
        steps = [(few, more), (more, many)]
        cpu = [
            max(1e-4, (figures_of[end].cpu_s - figures_of[begin].cpu_s) / (end - begin) * 1_000)
            for begin, end in steps
        ]
        kb = [
            max(_MIN_KB, (figures_of[end].mb - figures_of[begin].mb) / (end - begin) * 1_024)
            for begin, end in steps
        ]
        peer = f"the same from {few:,} to {more:,} subscribers"
        note(
            f"server's CPU per second for a thousand further subscribers, from {more:,} to {many:,}",
            *(peer, cpu[1], cpu[0], "CPU s", _GOAL),
        )
        note(
            f"server's memory for a further subscriber, from {more:,} to {many:,}",
            *(peer, kb[1], kb[0], "KB", _GOAL),
        )
        note(
            f"frames per subscriber, {many:,} subscribers",
            *(
                f"the same with {few:,} subscribers",
                figures_of[many].frames,
                figures_of[few].frames,
                "frames/s",
                _GOAL,
            ),
        )
        note(
            f"delivery p99 to {many:,} subscribers",
            *(
                f"the same with {few:,} subscribers",
                figures_of[many].p99_ms,
                figures_of[few].p99_ms,
                "ms",
                None,
            ),
        )
