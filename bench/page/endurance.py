"""Memory growth of a page, and of its server, while the page stays open at 20 updates per second and visits all
sections.
"""

from __future__ import annotations

import time

import psutil
from playwright.sync_api import CDPSession

from bench.page.app import LARGE
from bench.page.context import PageContext, Screen, metrics
from bench.page.update_cost import UPDATES_PER_S, quick_stream

__all__ = ["measure"]

_SECTIONS = ("graph", "flows", "topics", "groups", "dead", "views", "alerts")
_STAY_MS = 1_000
_GOAL = 0.9


def measure(context: PageContext) -> None:
    """The row with a goal compares the final size with the size just after the page was opened and had visited every
    section. The rows without a goal show how much of the growth comes before the 15-minute history is full, and how
    much comes later.
    """
    with (
        context.serving(LARGE) as served,
        context.screen(served.port) as screen,
        quick_stream(screen.page, screen.address),
    ):
        screen.page.goto(f"{screen.address}/#/graph")
        screen.page.wait_for_selector('[data-test="node"]')
        screen.cdp.send("Performance.enable")
        server = psutil.Process(served.process.pid)

        def sizes() -> dict[str, float]:
            return {
                "the page's heap": _heap_mb(screen.cdp),
                "the server's memory": server.memory_info().rss / 1e6,
            }

        _visit_all_sections(screen)
        _visit_all_sections(screen)
        first_sizes = sizes()
        _visit_sections_for(context.plan.settle_s, screen)
        full_sizes = sizes()
        _visit_sections_for(context.plan.soak_s, screen)
        plan, rate = context.plan, f"s of {UPDATES_PER_S} updates/s, {LARGE} parts"
        opened, full = "the same when it was opened", f"the same after the first {plan.settle_s:g} s"
        for name, size in sizes().items():
            for after_s, peer, us, them, goal in (
                (f"{plan.settle_s + plan.soak_s:g}", opened, size, first_sizes[name], _GOAL),
                (f"the first {plan.settle_s:g}", opened, full_sizes[name], first_sizes[name], None),
                (f"{plan.soak_s:g}", full, size, full_sizes[name], None),
            ):
                context.figures.add_comparison(f"{name} after {after_s} {rate}", peer, us, them, "MB", goal)


def _visit_sections_for(seconds: float, screen: Screen) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        _visit_all_sections(screen)


def _visit_all_sections(screen: Screen) -> None:
    for section in _SECTIONS:
        screen.page.evaluate("(to) => { location.hash = `#/${to}`; }", section)
        screen.page.wait_for_selector(f'[data-test="section-{section}"]')
        screen.page.wait_for_timeout(_STAY_MS)


def _heap_mb(cdp: CDPSession) -> float:
    for _ in range(2):
        cdp.send("HeapProfiler.collectGarbage")
    return metrics(cdp)["JSHeapUsedSize"] / 1e6
