"""One Chromium and three served apps (a small one, a large one, one of views) for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from faults.serve.chromium import browser
from tests.browser.page_apps import large, screen, small, small_home
from tests.browser.views_app import views_app, views_home, views_http
from tests.views.conftest import cluster, fresh, log

__all__ = [
    "chromium",
    "cluster",
    "fresh",
    "large",
    "log",
    "screen",
    "small",
    "small_home",
    "views_app",
    "views_home",
    "views_http",
]


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """One browser, closed after the last test of the folder, because a test with its own event loop cannot run while
    Playwright's event loop runs.
    """
    with browser() as started:
        yield started
