"""How a user's commands name the app, so that the commands in hints and reports can be pasted: ``shop:app``.

A process loads one app. Without a command line, for example in a test, its name is the placeholder ``MODULE:APP``.
"""

from __future__ import annotations

__all__ = ["app_argument", "set_app_argument"]

_argument = "MODULE:APP"


def app_argument() -> str:
    return _argument


def set_app_argument(argument: str) -> None:
    """Set the name with which the user loaded the app."""
    global _argument
    _argument = argument
