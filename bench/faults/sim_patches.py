"""How a protection is taken out of the product for the length of a simulated run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

__all__ = ["Wrapped", "taken_out"]


class Wrapped:
    """Something in another's place, which passes on all that it does not do itself."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def taken_out(protections: Mapping[str, Callable[[ExitStack], None]], name: str | None) -> Iterator[None]:
    """``None`` leaves everything as it is."""
    with ExitStack() as stack:
        if name is not None:
            protections[name](stack)
        yield
