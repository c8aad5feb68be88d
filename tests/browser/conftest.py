"""One Chromium per module, and apps behind servers for all tests of the page: a small, a large, one of views."""

from __future__ import annotations

from tests.browser.screens import large, screen, small, small_home
from tests.browser.views_house import views_app, views_home, views_http
from tests.remote.conftest import chromium
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
