"""Libraries that come with an extra of the package: what to say where one is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from headrace.errors import HeadraceError

__all__ = ["ExtraMissing", "needing"]


class ExtraMissing(HeadraceError):
    code = "HR-EXTRA-MISSING"


@contextlib.contextmanager
def needing(extra: str, library: str) -> Iterator[None]:
    """Around an import: what is missing is named with the command that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise ExtraMissing(
            f"{library} is not installed, and this needs it",
            hint=f"pip install 'headrace[{extra}]'",
        ) from error
