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
    """Before it begins, all sections were open once: what is loaded once does not count as growth."""
    with (
        stand.serving(LARGE) as served,
        stand.screen(served.port) as screen,
        quick_stream(screen.page, screen.address),
    ):
        screen.page.goto(f"{screen.address}/#/graph")
        screen.page.wait_for_selector('[data-test="node"]')
        screen.cdp.send("Performance.enable")
        server = psutil.Process(served.process.pid)
        _around(screen)
        _around(screen)
        heap_mb, server_mb = _heap_mb(screen.cdp), server.memory_info().rss / 1e6
        ends = time.monotonic() + stand.plan.soak_s
        while time.monotonic() < ends:
            _around(screen)
        name = f"after {stand.plan.soak_s:g} s of {UPDATES_PER_S} updates/s, {LARGE} parts"
        both, peer = stand.measured.both, "the same at its beginning"
        both(f"the page's heap {name}", peer, _heap_mb(screen.cdp), heap_mb, "MB", _GOAL)
        both(f"the server's memory {name}", peer, server.memory_info().rss / 1e6, server_mb, "MB", _GOAL)


def _around(screen: Screen) -> None:
    for section in _ROUND:
        screen.page.evaluate("(to) => { location.hash = `#/${to}`; }", section)
        screen.page.wait_for_selector(f'[data-test="section-{section}"]')
        screen.page.wait_for_timeout(_STAY_MS)


def _heap_mb(cdp: CDPSession) -> float:
    for _ in range(2):
        cdp.send("HeapProfiler.collectGarbage")
    return metrics(cdp)["JSHeapUsedSize"] / 1e6
