"""The first load of the page: bytes over the wire, time to the first paint, and time until the graph is drawn."""

from __future__ import annotations

from typing import Any

from bench.page.app import LARGE, SMALL
from bench.page.context import PageContext

__all__ = ["measure"]

_WEIGHT_KB = 500.0
_PAINT_MS = 1_000.0
_DRAWN_MS = {SMALL: 1_500.0, LARGE: 3_000.0}
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_DRAWN = """new Promise((done) => {
  const drawn = () => document.querySelector('[data-test="node"]');
  const poll = () => requestAnimationFrame(() => (drawn() ? done(performance.now()) : poll()));
  poll();
})"""


def measure(context: PageContext) -> None:
    for parts in (SMALL, LARGE):
        with context.serving(parts) as served:
            for _ in range(context.plan.rounds):
                _round(context, parts, served.port)


def _round(context: PageContext, parts: int, port: int) -> None:
    add_comparison = context.figures.add_comparison
    with context.screen(port) as screen:
        sizes: list[float] = []
        screen.cdp.on("Network.loadingFinished", lambda event: sizes.append(_bytes(event)))
        screen.cdp.send("Network.enable")
        screen.page.goto(f"{screen.address}/#/graph", wait_until="commit")
        drawn_ms = screen.page.evaluate(_DRAWN)
        # The event stream with the graph's numbers never ends, so its bytes are not counted.
        painted_ms = screen.page.wait_for_function(_PAINTED).json_value()
        if parts == SMALL:
            screen.page.wait_for_load_state("load")
            add_comparison(
                "bytes of the first load", _limit(_WEIGHT_KB, "KB"), sum(sizes) / 1_000, _WEIGHT_KB, "KB"
            )
    name = f"{parts} parts"
    add_comparison(f"until the first paint, {name}", _limit(_PAINT_MS, "ms"), painted_ms, _PAINT_MS, "ms")
    limit = _DRAWN_MS[parts]
    add_comparison(f"until the graph is drawn, {name}", _limit(limit, "ms"), drawn_ms, limit, "ms")


def _bytes(event: dict[str, Any]) -> float:
    return float(event["encodedDataLength"])


def _limit(value: float, unit: str) -> str:
    return f"a limit of {value:g} {unit}"
