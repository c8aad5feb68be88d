"""Headrace: the database turned inside out."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.app import App as App
    from headrace.model.kinds import Digits as Digits

__all__ = ["App", "Digits"]


def __getattr__(name: str) -> Any:
    """Import on first use: the broker and the command line import this package, but use neither name."""
    if name == "App":
        from headrace.app import App

        return App
    if name == "Digits":
        from headrace.model.kinds import Digits

        return Digits
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
