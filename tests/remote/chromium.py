"""A page in Chromium, with its own origin: the client's files and a page that loads them, from a plain file server."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

import headrace.serve
from tools.debian import find

__all__ = ["browser", "open_page", "site"]

CLIENT = Path(headrace.serve.__file__).parent / "browser"


class _Files(http.server.SimpleHTTPRequestHandler):
    extensions_map = {".js": "text/javascript", ".html": "text/html"}  # noqa: RUF012

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextlib.contextmanager
def site(folder: Path) -> Iterator[str]:
    """The origin of the page."""
    for path in (*CLIENT.glob("*.js"), Path(__file__).with_name("page.html")):
        shutil.copy(path, folder / path.name)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Files, directory=str(folder))
    )
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    path = find("chromium")
    assert path is not None, "make setup installs chromium"
    with sync_playwright() as playwright:
        # Whoever runs tests may be root, and root has no sandbox.
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield found
        finally:
            found.close()


def open_page(context: Any, origin: str) -> Page:
    page: Page = context.new_page()
    page.goto(f"{origin}/page.html")
    page.wait_for_function("window.ready")
    return page
