"""A folder with the same index in it, of which the files are shared: they never change once they are written.

Whoever writes the index goes on meanwhile, and may remove what a commit of before had; it is begun again then.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from headrace.private import DIR_MODE, make_private_dir
from headrace.views.catalog import sync_folder, write_synced

__all__ = ["copy_index", "opstamp_of"]

_SUFFIXES = ("idx", "pos", "term", "store", "fast", "fieldnorm")
_NO_LINKS = {errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP}


class _Deletes(msgspec.Struct):
    opstamp: int


class _Segment(msgspec.Struct):
    segment_id: str
    deletes: _Deletes | None = None


class _Meta(msgspec.Struct):
    segments: list[_Segment]
    opstamp: int


def opstamp_of(folder: Path) -> int:
    """Which commit it is."""
    return msgspec.json.decode((folder / "meta.json").read_bytes(), type=_Meta).opstamp


def copy_index(old: Path, new: Path) -> None:
    """``new`` is made. Raises FileNotFoundError if files are missing that the index needs."""
    data = _meta(old)
    while True:
        shutil.rmtree(new, ignore_errors=True)
        try:
            _copy(old, new, data)
        except FileNotFoundError:
            again = _meta(old)
            if again == data:
                raise
            data = again
            continue
        return


def _meta(folder: Path) -> bytes:
    return (folder / "meta.json").read_bytes()


def _copy(old: Path, new: Path, data: bytes) -> None:
    make_private_dir(new.parent)
    new.mkdir(DIR_MODE)
    names = [name for one in msgspec.json.decode(data, type=_Meta).segments for name in _files(one)]
    for name in names:
        _share(old / name, new / name)
    # What the index may remove once it needs it no more.
    managed: list[Any] = [*names, "meta.json"]
    write_synced(new / ".managed.json", msgspec.json.encode(managed))
    write_synced(new / "meta.json", data)
    sync_folder(new)
    sync_folder(new.parent)


def _files(segment: _Segment) -> list[str]:
    stem = segment.segment_id.replace("-", "")
    made = [f"{stem}.{suffix}" for suffix in _SUFFIXES]
    return made + ([f"{stem}.{segment.deletes.opstamp}.del"] if segment.deletes else [])


def _share(old: Path, new: Path) -> None:
    try:
        os.link(old, new)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        write_synced(new, old.read_bytes())
