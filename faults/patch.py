"""Replaces private parts of the product.

A patch of an attribute that does not exist raises an error. Otherwise a rename in the product would leave an
"unprotected" run protected.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["patch", "patched", "shadow_builtin"]


def patch(owner: type | ModuleType, name: str, replacement: Any) -> None:
    """Replace an attribute that the class or module itself defines or imports."""
    _own_attribute(owner, name)
    setattr(owner, name, replacement)


@contextmanager
def patched(owner: type | ModuleType, name: str, replacement: Any) -> Iterator[None]:
    """Apply ``patch`` while the block runs."""
    original = _own_attribute(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


def shadow_builtin(module: ModuleType, name: str, replacement: Any) -> None:
    """Replace a builtin for the code of one module."""
    if not hasattr(builtins, name):
        raise AttributeError(f"Python has no builtin {name!r}")
    vars(module)[name] = replacement


def _own_attribute(owner: type | ModuleType, name: str) -> Any:
    try:
        return vars(owner)[name]
    except KeyError:
        raise AttributeError(
            f"{owner.__name__} has no attribute {name!r} of its own that can be replaced"
        ) from None
