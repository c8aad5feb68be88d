"""A page that stays open, at 20 updates per second, and goes around its sections: does it, or its server, grow?"""

from __future__ import annotations

import time

import psutil
from playwright.sync_api import CDPSession

from bench.paging.app import LARGE
from bench.paging.quick_stream import UPDATES_PER_S, quick_stream
from bench.paging.stand import PageStand, Screen, metrics

__all__ = ["measure"]

_ROUND = ("graph", "flows", "topics", "groups", "dead", "views", "alerts")
_STAY_MS = 1_000
_GOAL = 0.9


def measure(stand: PageStand) -> None:
    """The goal is held against the page when it was opened, with every section seen once. How much of the growth comes
    until what is kept of the last quarter of an hour is full, and how much later, is told beside it, without a goal.
    """
    with (
        stand.serving(LARGE) as served,
        stand.screen(served.port) as screen,
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

        _around(screen)
        _around(screen)
        new = sizes()
        _for(stand.plan.settle_s, screen)
        settled = sizes()
        _for(stand.plan.soak_s, screen)
        plan, rate = stand.plan, f"s of {UPDATES_PER_S} updates/s, {LARGE} parts"
        opened, full = "the same when it was opened", "the same before, with its samples full"
        for name, size in sizes().items():
            for after_s, peer, us, them, goal in (
                (f"{plan.settle_s + plan.soak_s:g}", opened, size, new[name], _GOAL),
                (f"the first {plan.settle_s:g}", opened, settled[name], new[name], None),
                (f"{plan.soak_s:g}", full, size, settled[name], None),
            ):
                stand.measured.both(f"{name} after {after_s} {rate}", peer, us, them, "MB", goal)


def _for(seconds: float, screen: Screen) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        _around(screen)


def _around(screen: Screen) -> None:
    for section in _ROUND:
        screen.page.evaluate("(to) => { location.hash = `#/${to}`; }", section)
        screen.page.wait_for_selector(f'[data-test="section-{section}"]')
        screen.page.wait_for_timeout(_STAY_MS)


def _heap_mb(cdp: CDPSession) -> float:
    for _ in range(2):
        cdp.send("HeapProfiler.collectGarbage")
    return metrics(cdp)["JSHeapUsedSize"] / 1e6
