"""Keeps a Delta table small: few files, a short log, and old versions for a while.

Every commit leaves files that newer versions do not have. Every ``EVERY_COMMITS`` small files are made one, and what
only old versions have is removed. A version is kept for ``KEPT_S`` after the next one, and so are the last
``VERSIONS_KEPT`` whatever their age: so long does a reader that has one open find its files. But there are no more than
``VERSIONS_MAX``, and fewer where their files come to more than ``DEAD_TIMES`` times the table and ``DEAD_BYTES``. The
log goes back to the newest checkpoint that is not younger than those.

What a killed writer leaves belongs to no version: it is removed once it is older than any commit takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.clock import Clock
from headrace.views.delta.log import CHECKPOINT, LOG, actions, commit_path, version_of
from headrace.views.delta.table import LakeTable

__all__ = ["DEAD_BYTES", "DEAD_TIMES", "EVERY_COMMITS", "KEPT_S", "VERSIONS_KEPT", "VERSIONS_MAX", "Upkeep"]

EVERY_COMMITS = 25
VERSIONS_KEPT = 50
VERSIONS_MAX = 1_000
KEPT_S = 600
DEAD_TIMES = 4
DEAD_BYTES = 256 << 20
_LOST_S = 3_600
_LOST_EVERY = 1_000


@dataclass(frozen=True, slots=True)
class _Removed:
    """What a commit took out of the table."""

    paths: tuple[str, ...]
    size: int
    at_s: float


class Upkeep:
    """Of one table, by its one writer."""

    def __init__(self, table: LakeTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._last: int | None = None
        self._removed: dict[int, _Removed | None] = {}

    def after_commit(self) -> None:
        table = self._table
        if self._last is None:
            # A writer that is killed often must tidy up as well: by the numbers of versions, not by its own commits.
            self._last = table.version - table.version % EVERY_COMMITS
        if table.version - self._last < EVERY_COMMITS:
            return
        table.compact()
        oldest = self._oldest()
        self._remove_files(oldest)
        if self._last // _LOST_EVERY != table.version // _LOST_EVERY:
            self._remove_lost()
        table.checkpoint()
        self._clean_log(oldest)
        self._last = table.version

    def _oldest(self) -> int:
        """The oldest version that is kept."""
        version = newest = self._table.version
        dead_left = DEAD_TIMES * sum(self._table.live().values()) + DEAD_BYTES
        while version > 0 and newest - version + 1 < VERSIONS_MAX:
            # What this one removed is what the one before has.
            removed = self._removed_by(version)
            if removed is None or removed.size > dead_left:
                break
            if newest - version + 1 >= VERSIONS_KEPT and self._age_s(removed.at_s) > KEPT_S:
                break
            dead_left -= removed.size
            version -= 1
        return version

    def _age_s(self, at_s: float) -> float:
        return self._clock.now_ms() / 1_000 - at_s

    def _removed_by(self, version: int) -> _Removed | None:
        """None if the log has been cleaned of it."""
        if version not in self._removed:
            try:
                found = [one["remove"] for one in actions(self._table.folder, version) if "remove" in one]
                at_s = commit_path(self._table.folder, version).stat().st_mtime
            except FileNotFoundError:
                return None
            size = sum(int(one.get("size") or 0) for one in found)
            self._removed[version] = _Removed(tuple(str(one["path"]) for one in found), size, at_s)
        return self._removed[version]

    def _remove_files(self, oldest: int) -> None:
        """Those that were removed by ``oldest`` or before: no version that is kept has them."""
        live = self._table.live()
        for version in sorted(self._versions()):
            if version <= oldest and (removed := self._removed_by(version)) is not None:
                for path in removed.paths:
                    # A name may be given again by whoever restores an older version, or lead out of the folder.
                    if path not in live and Path(path).name == path:
                        (self._table.folder / path).unlink(missing_ok=True)
                # Done with, and the log may still have it for a while.
                self._removed[version] = None

    def _versions(self) -> set[int]:
        names = (path.name for path in (self._table.folder / LOG).iterdir())
        return {version for name in names if (version := version_of(name)) >= 0}

    def _remove_lost(self) -> None:
        known = {path for one in self._removed.values() if one is not None for path in one.paths}
        known |= set(self._table.live())
        log = self._table.folder / LOG
        data = (path for path in self._table.folder.glob("*.parquet*") if path.name not in known)
        for path in [*data, *log.glob("_commit_*.tmp"), *log.glob("*.json#*")]:
            if self._age_s(path.stat().st_mtime) > _LOST_S:
                path.unlink(missing_ok=True)

    def _clean_log(self, oldest: int) -> None:
        log = self._table.folder / LOG
        names = [path.name for path in log.iterdir()]
        points = [int(name[:20]) for name in names if name.endswith(CHECKPOINT) and name[:20].isdigit()]
        before = max((one for one in points if one <= oldest), default=0)
        for name in names:
            version = version_of(name)
            if name.endswith(CHECKPOINT) and name[:20].isdigit():
                version = int(name[:20])
            if 0 <= version < before:
                (log / name).unlink(missing_ok=True)
                self._removed.pop(version, None)
