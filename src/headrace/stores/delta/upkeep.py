"""Maintains a Delta table: merges small files, shortens the log, and removes old versions.

Every commit leaves files that newer versions do not use. After ``EVERY_COMMITS`` commits, the upkeep merges small files
and removes files that only expired versions use. Readers of an older version need its files for some time. So the
upkeep retains a version until ``RETENTION_S`` seconds after the next version was created. It retains the last
``VERSIONS_MIN`` versions at any age, and never more than ``VERSIONS_MAX`` versions. The files that only old versions
use may be at most as large as the table times ``UNUSED_SIZE_FACTOR``, plus ``UNUSED_BYTES``. If they are larger, the
upkeep removes the oldest versions. The log starts at the newest checkpoint that is not newer than the oldest retained
version.

If a writer is killed, it can leave files that do not belong to a version. The upkeep removes these files after
``_ORPHAN_S`` seconds, which is longer than any commit takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.clock import Clock
from headrace.stores.delta.layout import CHECKPOINT, LOG, actions_of, commit_path, version_of
from headrace.stores.delta.table import LakeTable

__all__ = [
    "EVERY_COMMITS",
    "RETENTION_S",
    "UNUSED_BYTES",
    "UNUSED_SIZE_FACTOR",
    "VERSIONS_MAX",
    "VERSIONS_MIN",
    "Upkeep",
]

EVERY_COMMITS = 25
VERSIONS_MIN = 50
VERSIONS_MAX = 1_000
RETENTION_S = 600
UNUSED_SIZE_FACTOR = 4
UNUSED_BYTES = 256 << 20
_ORPHAN_S = 3_600
_ORPHANS_EVERY = 1_000


@dataclass(frozen=True, slots=True)
class _Removed:
    """The files that a commit removed from the table."""

    paths: tuple[str, ...]
    size: int
    at_s: float


class Upkeep:
    """Only the single writer of the table may use it."""

    def __init__(self, table: LakeTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._last: int | None = None
        self._removed: dict[int, _Removed | None] = {}

    def after_commit(self) -> None:
        table = self._table
        if self._last is None:
            # Count versions instead of own commits, so that a writer that restarts often also runs the upkeep.
            self._last = table.version - table.version % EVERY_COMMITS
        if table.version - self._last < EVERY_COMMITS:
            return
        table.compact()
        oldest = self._oldest_retained()
        self._remove_files(oldest)
        if self._last // _ORPHANS_EVERY != table.version // _ORPHANS_EVERY:
            self._remove_orphans()
        table.checkpoint()
        self._clean_log(oldest)
        self._last = table.version

    def _oldest_retained(self) -> int:
        version = newest = self._table.version
        unused_bytes_left = UNUSED_SIZE_FACTOR * sum(self._table.files().values()) + UNUSED_BYTES
        while version > 0 and newest - version + 1 < VERSIONS_MAX:
            # The previous version still uses the files that this version removed.
            removed = self._removed_by(version)
            if removed is None or removed.size > unused_bytes_left:
                break
            if newest - version + 1 >= VERSIONS_MIN and self._age_s(removed.at_s) > RETENTION_S:
                break
            unused_bytes_left -= removed.size
            version -= 1
        return version

    def _age_s(self, at_s: float) -> float:
        return self._clock.now_ms() / 1_000 - at_s

    def _removed_by(self, version: int) -> _Removed | None:
        """Return the files that the version removed, or None if the log no longer has the version."""
        if version not in self._removed:
            try:
                removals = [
                    action["remove"]
                    for action in actions_of(self._table.folder, version)
                    if "remove" in action
                ]
                at_s = commit_path(self._table.folder, version).stat().st_mtime
            except FileNotFoundError:
                return None
            size = sum(int(file.get("size") or 0) for file in removals)
            self._removed[version] = _Removed(tuple(str(file["path"]) for file in removals), size, at_s)
        return self._removed[version]

    def _remove_files(self, oldest: int) -> None:
        """Delete the files that ``oldest`` or an earlier version removed. No retained version uses them."""
        live = self._table.files()
        for version in sorted(self._versions()):
            if version <= oldest and (removed := self._removed_by(version)) is not None:
                for path in removed.paths:
                    # A restored older version can use the file again, and a path can point outside the folder.
                    if path not in live and Path(path).name == path:
                        (self._table.folder / path).unlink(missing_ok=True)
                # Mark these files as deleted. The log can still contain the version for some time.
                self._removed[version] = None

    def _versions(self) -> set[int]:
        names = (path.name for path in (self._table.folder / LOG).iterdir())
        return {version for name in names if (version := version_of(name)) >= 0}

    def _remove_orphans(self) -> None:
        referenced = {
            path for removed in self._removed.values() if removed is not None for path in removed.paths
        }
        referenced |= set(self._table.files())
        log = self._table.folder / LOG
        data = (path for path in self._table.folder.glob("*.parquet*") if path.name not in referenced)
        for path in [*data, *log.glob("_commit_*.tmp"), *log.glob("*.json#*")]:
            if self._age_s(path.stat().st_mtime) > _ORPHAN_S:
                path.unlink(missing_ok=True)

    def _clean_log(self, oldest: int) -> None:
        log = self._table.folder / LOG
        names = [path.name for path in log.iterdir()]
        checkpoints = [int(name[:20]) for name in names if name.endswith(CHECKPOINT) and name[:20].isdigit()]
        first = max((version for version in checkpoints if version <= oldest), default=0)
        for name in names:
            version = version_of(name)
            if name.endswith(CHECKPOINT) and name[:20].isdigit():
                version = int(name[:20])
            if 0 <= version < first:
                (log / name).unlink(missing_ok=True)
                self._removed.pop(version, None)
