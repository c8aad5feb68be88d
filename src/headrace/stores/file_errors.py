"""Translates errors of stores that are folders. The errors come from the operating system, or from libraries in Rust.
Those libraries report the system's error number only inside the error text.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

from headrace.stores.errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreGone,
    StoreReplaced,
    StoreUnusable,
)

__all__ = ["file_error", "removed_error", "translate_errors", "translate_os_errors"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BUSY = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EBUSY}
_GONE = {errno.EIO, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT, errno.EHOSTDOWN}
_REPLACED = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}

_OS_ERROR = re.compile(r"os error (\d+)|code: (\d+), kind")
_MISSING = re.compile(r"FileDoesNotExist|File ?[Nn]ot ?[Ff]ound|does not exist|NotFound|No such file")
_LOCKED = re.compile(r"LockBusy")
# A writer thread of the library ended and did not report the reason. Committed data is unchanged.
_THREAD_ENDED = re.compile(r"index writer was killed|error occurred in a thread")
_RUST_ERRORS = {"PanicException", "DeltaError"}
_NOISE = re.compile(r"\x1b\[[0-9;]*m|↳")
_TRACE = re.compile(r"\n\s+0: .*", re.DOTALL)


@contextlib.contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise file_error(path, error.errno or 0, str(error)) from error


def file_error(path: Path, code: int, message: str) -> StoreError:
    if code in _FULL:
        return StoreFull(f"no space left for {path}: {message}", hint="free some space; the follower retries")
    if code in _BUSY:
        return StoreBusy(f"cannot use {path} at the moment: {message}", hint="the follower retries")
    if code in _GONE:
        return StoreGone(f"no response from {path}: {message}", hint="check the disk; the follower retries")
    if code in _REPLACED:
        return StoreReplaced(
            f"a part of {path} is missing: {message}",
            hint="the follower opens the store again and continues from its position, or rebuilds the view",
        )
    return StoreUnusable(
        f"cannot use {path}: {message}", hint="check its content and its owner, or choose another folder"
    )


def removed_error(path: Path) -> StoreReplaced:
    return StoreReplaced(
        f"{path} was removed or replaced while it was open",
        hint="the follower opens the store again and continues from its position, or rebuilds the view",
    )


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Translate the errors of calls of a Rust library. ``path`` is the folder of its table or index."""
    try:
        yield
    except FileNotFoundError as error:
        raise file_error(path, errno.ENOENT, str(error)) from error
    except OSError as error:
        if error.errno:
            raise file_error(path, error.errno, str(error)) from error
        raise _translated(path, str(error)) from error
    except (UnicodeError, StoreError):
        raise
    except (ValueError, RuntimeError) as error:
        raise _translated(path, str(error)) from error
    except BaseException as error:
        # A panic in Rust is not an Exception in Python.
        if _RUST_ERRORS.isdisjoint(base.__name__ for base in type(error).__mro__):
            raise
        raise _translated(path, str(error)) from error


def _translated(path: Path, text: str) -> StoreError:
    message = " ".join(_NOISE.sub("", _TRACE.sub("", text)).split())
    match = _OS_ERROR.search(text)
    if match is not None:
        return file_error(path, int(match[1] or match[2]), message)
    if _MISSING.search(message):
        return file_error(path, errno.ENOENT, message)
    if _LOCKED.search(message):
        return StoreBusy(f"another writer holds {path}: {message}", hint="the follower retries")
    if _THREAD_ENDED.search(message):
        return StoreFull(
            f"cannot write {path}, possibly because no space is left: {message}",
            hint="check the disk; the follower retries",
        )
    return StoreDamaged(
        f"cannot read {path}: {message}",
        hint="move it to another place; the follower then rebuilds the view from the log",
    )
