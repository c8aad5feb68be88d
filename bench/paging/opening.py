"""Opening the page for the first time: what goes over the wire, and how long until something, and all, is seen."""

from __future__ import annotations

from typing import Any

from bench.paging.app import LARGE, SMALL
from bench.paging.stand import PageStand

__all__ = ["measure"]

_WEIGHT_KB = 500.0
_PAINT_MS = 1_000.0
_DRAWN_MS = {SMALL: 1_500.0, LARGE: 3_000.0}
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_DRAWN = """new Promise((done) => {
  const drawn = () => document.querySelector('[data-test="node"]');
  const look = () => requestAnimationFrame(() => (drawn() ? done(performance.now()) : look()));
  look();
})"""


def measure(stand: PageStand) -> None:
    for parts in (SMALL, LARGE):
        with stand.serving(parts) as served:
            for _ in range(stand.plan.rounds):
                _round(stand, parts, served.port)


def _round(stand: PageStand, parts: int, port: int) -> None:
    both = stand.measured.both
    with stand.screen(port) as screen:
        sizes: list[float] = []
        screen.cdp.on("Network.loadingFinished", lambda told: sizes.append(_bytes(told)))
        screen.cdp.send("Network.enable")
        screen.page.goto(f"{screen.address}/#/graph", wait_until="commit")
        drawn_ms = screen.page.evaluate(_DRAWN)
        # The stream of numbers has no end, and is not of these.
        painted_ms = screen.page.wait_for_function(_PAINTED).json_value()
        if parts == SMALL:
            screen.page.wait_for_load_state("load")
            both("bytes of the first load", _limit(_WEIGHT_KB, "KB"), sum(sizes) / 1_000, _WEIGHT_KB, "KB")
    name = f"{parts} parts"
    both(f"until something is painted, {name}", _limit(_PAINT_MS, "ms"), painted_ms, _PAINT_MS, "ms")
    limit = _DRAWN_MS[parts]
    both(f"until the graph is drawn, {name}", _limit(limit, "ms"), drawn_ms, limit, "ms")


def _bytes(told: dict[str, Any]) -> float:
    return float(told["encodedDataLength"])


def _limit(value: float, unit: str) -> str:
    return f"a limit of {value:g} {unit}"
