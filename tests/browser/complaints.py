"""What a page complains of while it is looked at."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import ConsoleMessage, Dialog, Page

__all__ = ["any_trouble", "complaints_of", "policy"]


def policy(said: ConsoleMessage) -> bool:
    """What the policy of the page has stopped."""
    return "Security Policy" in said.text


def any_trouble(said: ConsoleMessage) -> bool:
    """Also an answer that is none."""
    return said.type in ("error", "warning")


def complaints_of(page: Page, counts: Callable[[ConsoleMessage], bool]) -> list[str]:
    """What a script fails with, what it opens a dialog for, and what ``counts`` of the console; it grows."""
    found: list[str] = []

    def heard(said: ConsoleMessage) -> None:
        if counts(said):
            found.append(f"{said.type}: {said.text}")

    def asked(dialog: Dialog) -> None:
        found.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", heard)
    page.on("dialog", asked)
    return found
