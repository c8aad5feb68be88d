"""A page in Chromium with its own origin. A plain file server serves the client's files and a page that loads them."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, sync_playwright

import headrace.serve
from tools.debian import find

__all__ = ["any_trouble", "browser", "complaints_of", "open_page", "policy", "site"]

CLIENT = Path(headrace.serve.__file__).parent / "page" / "browser"


class _Files(http.server.SimpleHTTPRequestHandler):
    extensions_map = {".js": "text/javascript", ".html": "text/html"}  # noqa: RUF012

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextlib.contextmanager
def site(folder: Path) -> Iterator[str]:
    """Serve the folder and yield the origin of the page."""
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
        # Tests might run as root, for which Chromium has no sandbox.
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield chromium
        finally:
            chromium.close()


def open_page(context: Any, origin: str) -> Page:
    page: Page = context.new_page()
    page.goto(f"{origin}/page.html")
    page.wait_for_function("window.ready")
    return page


def policy(message: ConsoleMessage) -> bool:
    """Whether the message reports that the page's content security policy blocked something."""
    return "Security Policy" in message.text


def any_trouble(message: ConsoleMessage) -> bool:
    """Whether the message reports any problem, including a failed request."""
    return message.type in ("error", "warning")


def complaints_of(page: Page, is_complaint: Callable[[ConsoleMessage], bool]) -> list[str]:
    """Return a list that collects script errors, dialogs, and the console messages that ``is_complaint`` selects."""
    complaints: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if is_complaint(message):
            complaints.append(f"{message.type}: {message.text}")

    def on_dialog(dialog: Dialog) -> None:
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", on_console)
    page.on("dialog", on_dialog)
    return complaints
