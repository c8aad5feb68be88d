"""What the errors of libraries in Rust mean: the system's are told by a text with their number in it."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

from headrace.views.catalog import file_error
from headrace.views.errors import StoreBusy, StoreDamaged, StoreError, StoreFull

__all__ = ["told_as"]

_SYSTEM = re.compile(r"os error (\d+)|code: (\d+), kind")
_MISSING = re.compile(r"FileDoesNotExist|File ?[Nn]ot ?[Ff]ound|does not exist|NotFound|No such file")
_LOCKED = re.compile(r"LockBusy")
# A thread that writes files has ended, and its reason with it: what is already committed is as it was.
_STOPPED = re.compile(r"index writer was killed|error occurred in a thread")
_GIVEN_UP = {"PanicException", "DeltaError"}
_NOISE = re.compile(r"\x1b\[[0-9;]*m|↳")
_TRACE = re.compile(r"\n\s+0: .*", re.DOTALL)


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
        if _GIVEN_UP.isdisjoint(one.__name__ for one in type(error).__mro__):
            raise
        raise _translated(path, str(error)) from error


def _translated(path: Path, told: str) -> StoreError:
    message = " ".join(_NOISE.sub("", _TRACE.sub("", told)).split())
    found = _SYSTEM.search(told)
    if found is not None:
        return file_error(path, int(found[1] or found[2]), message)
    if _MISSING.search(message):
        return file_error(path, errno.ENOENT, message)
    if _LOCKED.search(message):
        return StoreBusy(f"{path} is being written: {message}", hint="it is tried again")
    if _STOPPED.search(message):
        return StoreFull(
            f"{path} cannot be written, perhaps for want of space: {message}",
            hint="look at the disk; it is tried again",
        )
    return StoreDamaged(
        f"{path} does not read back: {message}",
        hint="move it away: the view is built again from the log",
    )
