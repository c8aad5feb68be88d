"""What every part of ``bench.page`` receives: a plan, a broker, Chromium, and the figures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, CDPSession, Page

from bench.page.app import VARIABLE
from bench.session import Figures
from faults.serve.local_server import Process
from headrace.client.cluster import Cluster

__all__ = ["PageContext", "PagePlan", "Screen", "metrics"]


@dataclass(frozen=True, slots=True)
class PagePlan:
    rounds: int
    messages: int
    """Number of messages in the searched topic."""
    topics: int
    """Number of topics in the list."""
    updates_s: float
    """Seconds during which updates are counted."""
    settle_s: float
    """Seconds that a page is open before its growth counts. The page keeps 15 minutes of numbers."""
    soak_s: float

    @classmethod
    def quick(cls) -> PagePlan:
        """A plan for a smoke test."""
        return cls(rounds=1, messages=2_000, topics=30, updates_s=1.0, settle_s=0.0, soak_s=2.0)

    @classmethod
    def full(cls, rounds: int, messages: int, soak_s: float) -> PagePlan:
        return cls(
            rounds=rounds, messages=messages, topics=1_000, updates_s=10.0, settle_s=960.0, soak_s=soak_s
        )


_WAIT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Screen:
    page: Page
    cdp: CDPSession
    address: str


@dataclass
class PageContext:
    plan: PagePlan
    cluster: Cluster
    browser: Browser
    home: Path
    figures: Figures = field(default_factory=Figures)

    @contextlib.contextmanager
    def serving(self, parts: int) -> Iterator[Process]:
        data = self.home / f"parts-{parts}"
        process = Process(
            "bench.page.app:app", self.cluster.bootstrap, data, environment={VARIABLE: str(parts)}
        )
        try:
            yield process
        finally:
            process.stop()

    @contextlib.contextmanager
    def screen(self, port: int) -> Iterator[Screen]:
        """Yield a browser context without a cache, before it has opened an address."""
        context = self.browser.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_timeout(_WAIT_MS)
        try:
            page = context.new_page()
            yield Screen(page, context.new_cdp_session(page), f"http://127.0.0.1:{port}")
        finally:
            context.close()


def metrics(cdp: CDPSession) -> dict[str, float]:
    """Return Chromium's metrics, which must have been enabled."""
    return {metric["name"]: metric["value"] for metric in cdp.send("Performance.getMetrics")["metrics"]}
