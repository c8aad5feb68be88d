"""One sync of a partition: the only part of writing that waits for the disk, and so the part that runs in a
thread.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.files import Files
from headrace.log.mark import Mark, MarkFile
from headrace.log.segment import Segment

__all__ = ["SyncJob"]


@dataclass(slots=True)
class SyncJob:
    files: Files
    directory: Path | None
    segments: list[Segment]
    mark_file: MarkFile
    mark: Mark

    def run(self) -> None:
        """Sync the files, then the directory if it has a new one, then note it in the mark. Any ``OSError``
        means: not durable.

        That the mark cannot be written is no such error: an older one is also true, and the next sync of the mark
        tries again and says it.
        """
        for segment in self.segments:
            segment.file.sync()
        if self.directory is not None:
            self.files.sync_dir(self.directory)
        with suppress(OSError):
            self.mark_file.write(self.mark)
