"""What every part of ``bench.page`` is given: a plan, a broker, Chromium, and a book for figures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, CDPSession, Page

from bench.measured import Measured
from bench.paging.app import VARIABLE
from bench.paging.plan import PagePlan
from headrace.client.cluster import Cluster
from tests.serve.serving import Process

__all__ = ["PageStand", "Screen", "metrics"]

_WAIT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Screen:
    page: Page
    cdp: CDPSession
    address: str


@dataclass
class PageStand:
    plan: PagePlan
    cluster: Cluster
    browser: Browser
    home: Path
    measured: Measured = field(default_factory=Measured)

    @contextlib.contextmanager
    def serving(self, parts: int) -> Iterator[Process]:
        data = self.home / f"parts-{parts}"
        process = Process(
            "bench.paging.app:app", self.cluster.bootstrap, data, environment={VARIABLE: str(parts)}
        )
        try:
            yield process
        finally:
            process.stop()

    @contextlib.contextmanager
    def screen(self, port: int) -> Iterator[Screen]:
        """A browser with nothing kept, at no address yet."""
        context = self.browser.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_timeout(_WAIT_MS)
        try:
            page = context.new_page()
            yield Screen(page, context.new_cdp_session(page), f"http://127.0.0.1:{port}")
        finally:
            context.close()


def metrics(cdp: CDPSession) -> dict[str, float]:
    """Chromium's own, which must have been enabled."""
    return {one["name"]: one["value"] for one in cdp.send("Performance.getMetrics")["metrics"]}
