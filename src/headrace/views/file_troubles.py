"""What the errors of libraries in Rust mean: the system's are told by a text with their number in it."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

from headrace.views.catalog import file_error
from headrace.views.errors import StoreDamaged, StoreError

__all__ = ["told_as"]

_SYSTEM = re.compile(r"os error (\d+)|code: (\d+), kind")
_MISSING = re.compile(r"FileDoesNotExist|FileNotFound|does not exist|NotFound|No such file")


@contextlib.contextmanager
def told_as(path: Path) -> Iterator[None]:
    """``path`` is a folder with a table or an index in it."""
    try:
        yield
    except FileNotFoundError as error:
        raise file_error(path, errno.ENOENT, str(error)) from error
    except OSError as error:
        if error.errno:
            raise file_error(path, error.errno, str(error)) from error
        raise _translated(path, str(error)) from error
    except UnicodeError:
        raise
    except StoreError:
        raise
    except (ValueError, RuntimeError) as error:
        raise _translated(path, str(error)) from error
    except BaseException as error:
        # What a library in Rust raises when it gives up is no Exception.
        if type(error).__name__ not in ("PanicException", "DeltaError"):
            raise
        raise _translated(path, str(error)) from error


def _translated(path: Path, message: str) -> StoreError:
    found = _SYSTEM.search(message)
    if found is not None:
        return file_error(path, int(found[1] or found[2]), message)
    if _MISSING.search(message):
        return file_error(path, errno.ENOENT, message)
    return StoreDamaged(
        f"{path} does not read back: {message}",
        hint="move it away: the view is built again from the log",
    )
