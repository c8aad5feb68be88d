"""Scripts at 20 updates per second, of each of which every number is another one: what they take of each second."""

from __future__ import annotations

from bench.paging.app import LARGE, SMALL
from bench.paging.quick_stream import UPDATES_PER_S, quick_stream
from bench.paging.stand import PageStand, metrics

__all__ = ["measure"]

_LIMITS_MS = {SMALL: 100.0, LARGE: 250.0}
_DURATIONS = {"ScriptDuration": ("scripts", 1.0), "TaskDuration": ("scripts, layout and paint", None)}
"""By Chromium's names: what each counts, and its goal."""
_WARM_MS = 1_000


def measure(stand: PageStand) -> None:
    for parts, limit_ms in _LIMITS_MS.items():
        with stand.serving(parts) as served:
            for _ in range(stand.plan.rounds):
                _round(stand, parts, limit_ms, served.port)


def _round(stand: PageStand, parts: int, limit_ms: float, port: int) -> None:
    with stand.screen(port) as screen, quick_stream(screen.page, screen.address) as stream:
        screen.page.goto(f"{screen.address}/#/graph")
        screen.page.wait_for_selector('[data-test="node"]')
        screen.page.wait_for_timeout(_WARM_MS)
        screen.cdp.send("Performance.enable")
        before, updates = metrics(screen.cdp), stream.updates
        screen.page.wait_for_timeout(stand.plan.updates_s * 1_000)
        after, updates = metrics(screen.cdp), stream.updates - updates
    passed = after["Timestamp"] - before["Timestamp"]
    print(f"  {updates / passed:.1f} updates per second", flush=True)
    for name, (what, goal) in _DURATIONS.items():
        used_ms = (after[name] - before[name]) / passed * 1_000
        title = f"{what} per second at {UPDATES_PER_S} updates/s, {parts} parts"
        stand.measured.both(title, f"a limit of {limit_ms:g} ms", used_ms, limit_ms, "ms", goal)
