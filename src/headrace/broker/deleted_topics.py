"""Files of deleted topics: those in the data directory go at once, those in the archive when it can be reached.

    TOPIC/archived        a topic's directory with nothing but this empty file: the archive still has files of it

A topic's directory without an entry in the journal of topics belongs to a deleted one. A start removes what a crash has
left of it, and goes on with the archive where that file says so.
"""

from __future__ import annotations

import logging
from pathlib import Path

from headrace.errors import DataDirError
from headrace.files import Files
from headrace.log.archive import ARCHIVED_NAME, ARCHIVING_NAME

__all__ = ["DeletedTopics"]

_log = logging.getLogger("headrace.broker")


class DeletedTopics:
    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self.archived: set[str] = set()
        """Ids of those that the archive still has files of."""

    def remove(self, topic: str, files: Files) -> bool:
        """Remove the topic's own files, in any thread; raises ``OSError`` where some are left to the next start.

        True if the archive has files of it. The caller then adds it to ``archived``, on the event loop, and no sooner:
        ``remove_directory`` removes the directory, which must have nothing else in it by then.
        """
        home = self._directory / topic
        if not files.exists(home):
            return False
        partitions = [name for name in files.list(home) if name != ARCHIVED_NAME]
        is_archived = files.exists(home / ARCHIVED_NAME)
        if not is_archived and any(
            files.exists(home / partition / name)
            for partition in partitions
            for name in (ARCHIVED_NAME, ARCHIVING_NAME)
        ):
            # Before the partitions' own lists go.
            files.open(home / ARCHIVED_NAME, create=True).close()
            files.sync_dir(home)
            is_archived = True
        for partition in partitions:
            for name in files.list(home / partition):
                files.remove(home / partition / name)
            files.remove_dir(home / partition)
        if not is_archived:
            files.remove_dir(home)
        files.sync_dir(self._directory)
        return is_archived

    def sweep(self, known: set[bytes]) -> None:
        """Remove directories of topics that were deleted when a crash came between."""
        for name in self._files.list(self._directory):
            try:
                topic_id = bytes.fromhex(name)
            except ValueError:
                topic_id = b""
            if len(topic_id) != 16:
                raise DataDirError(
                    f"{self._directory / name} is not a topic's directory",
                    hint="move it out of the data directory",
                )
            if topic_id not in known:
                _log.info("removing the files of a deleted topic: %s", name)
                if self.remove(name, self._files):
                    self.archived.add(name)

    def remove_directory(self, topic: str) -> None:
        """Remove what told that the archive has files of it, in any thread, and once more where that failed. The caller
        then removes it from ``archived``, on the event loop.
        """
        home = self._directory / topic
        if not self._files.exists(home):
            return
        if self._files.exists(home / ARCHIVED_NAME):
            self._files.remove(home / ARCHIVED_NAME)
        self._files.remove_dir(home)
        self._files.sync_dir(self._directory)
