"""A partition's files, out of pieces.

    <base>.log.restoring    a segment that is being put together; it takes its name when it is whole and synced

So a restore that was interrupted goes on with the segments that have not got their names. The mark, which makes a
partition of them, is written last.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from headrace.broker.backup.batch_walk import BatchWalk
from headrace.broker.backup.manifest import Part, Run
from headrace.broker.backup.reading import PieceReader
from headrace.files import File, Files
from headrace.log.archive import write_archived
from headrace.log.archived_segment import Entry
from headrace.log.compacted import Compacted
from headrace.log.mark import MARK_NAME, Mark, MarkFile
from headrace.log.segment import log_name, write_whole
from headrace.log.state import state_name

__all__ = ["Assembler"]

_RESTORING = ".restoring"


class Assembler:
    def __init__(self, files: Files, reader: PieceReader) -> None:
        self._files = files
        self._reader = reader

    def assemble(self, place: str, part: Part, directory: Path, cut: int | None) -> Mark:
        """Make the partition's directory; returns where it ends. One that has its mark already is whole."""
        if self._files.exists(directory / MARK_NAME):
            found = MarkFile(self._files, directory).load()
            assert found is not None
            return found
        mark = part.mark
        for run in part.segments:
            if cut is not None and run.base_offset > cut:
                break
            path = directory / log_name(run.base_offset)
            if cut is None:
                if not self._is_there(path, run.size):
                    self._segment(place, run, path, None)
                continue
            walk = BatchWalk(run.base_offset, cut)
            self._segment(place, run, path, walk)
            mark = Mark(part.start, walk.end_offset, run.base_offset, walk.position)
        if part.state is not None and part.state.offset <= mark.synced_offset:
            raw = self._reader.state(place, part.state)
            write_whole(self._files, directory / state_name(part.state.offset), raw)
        if part.compacted is not None and part.compacted != (0, 0, -1):
            clean, removed, horizon = part.compacted
            Compacted(min(clean, mark.synced_offset), removed, horizon).write(self._files, directory)
        if part.archived:
            # What the backup has of the archive lies behind it, and has become a part of the partition's own files.
            write_archived(self._files, directory, [Entry(*one) for one in part.archived])
        self._files.sync_dir(directory)
        MarkFile.create(self._files, directory, mark).close()
        self._files.sync_dir(directory)
        return mark

    def _is_there(self, path: Path, size: int) -> bool:
        if not self._files.exists(path):
            return False
        file = self._files.open(path)
        try:
            return file.size() == size
        finally:
            file.close()

    def _segment(self, place: str, run: Run, path: Path, walk: BatchWalk | None) -> None:
        fresh = path.with_name(path.name + _RESTORING)
        for leftover in (fresh, path):
            if self._files.exists(leftover):
                self._files.remove(leftover)
        file = self._files.open(fresh, create=True)
        try:
            position = 0
            for chunk in self._reader.run(place, run):
                _put(file, chunk, position)
                position += len(chunk)
                if walk is not None:
                    walk.feed(chunk)
                    if walk.is_over:
                        break
            if walk is not None:
                file.truncate(walk.position)
            file.sync()
        finally:
            file.close()
        self._files.rename(fresh, path)


def _put(file: File, chunk: bytes, position: int) -> None:
    taken = file.pwrite([chunk], position)
    if taken != len(chunk):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.path))
