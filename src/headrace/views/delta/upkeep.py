"""Keeps a Delta table small: few files, a short log, and old versions for a while.

Every commit leaves files that newer versions do not have. Every so many commits small files are made one, and what only
old versions have is removed. Kept are the last ``VERSIONS_KEPT`` versions, or fewer where their files come to more than
``DEAD_TIMES`` times the table and ``DEAD_BYTES``: so long does a reader of an older version find its files. The log
goes back to the newest checkpoint that is not younger than those.
"""

from __future__ import annotations

from headrace.views.delta.log import LOG, actions, version_of
from headrace.views.delta.table import LakeTable

__all__ = ["DEAD_BYTES", "DEAD_TIMES", "EVERY_COMMITS", "VERSIONS_KEPT", "Upkeep"]

EVERY_COMMITS = 25
VERSIONS_KEPT = 50
DEAD_TIMES = 4
DEAD_BYTES = 256 << 20
_CHECKPOINT = ".checkpoint.parquet"


class Upkeep:
    """Of one table, by its one writer."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._last: int | None = None

    def after_commit(self) -> None:
        table = self._table
        if self._last is None:
            # A writer that is killed often must tidy up as well: by the numbers of versions, not by its own commits.
            self._last = table.version - table.version % EVERY_COMMITS
        if table.version - self._last < EVERY_COMMITS:
            return
        table.compact()
        table.vacuum(self._kept(), lost=False)
        if self._last // 1_000 != table.version // 1_000:
            table.vacuum(self._kept(), lost=True)
        table.checkpoint()
        self._clean_log()
        self._last = table.version

    def _kept(self) -> list[int]:
        """The versions whose files stay, the newest among them."""
        table, newest = self._table, self._table.version
        live = sum(table.delta.get_add_actions(flatten=True)["size_bytes"].to_pylist())
        dead_max = DEAD_TIMES * live + DEAD_BYTES
        dead, version = 0, newest
        while version > 0 and newest - version + 1 < VERSIONS_KEPT:
            try:
                removed = [one["remove"] for one in actions(table.folder, version) if "remove" in one]
            except FileNotFoundError:
                break
            dead += sum(int(one.get("size") or 0) for one in removed)
            if dead > dead_max:
                break
            version -= 1
        return list(range(version, newest + 1))

    def _clean_log(self) -> None:
        log, oldest = self._table.folder / LOG, self._table.version - VERSIONS_KEPT
        names = [path.name for path in log.iterdir()]
        points = [int(name[:20]) for name in names if name.endswith(_CHECKPOINT) and name[:20].isdigit()]
        before = max((one for one in points if one <= oldest), default=0)
        for name in names:
            version = version_of(name)
            if name.endswith(_CHECKPOINT) and name[:20].isdigit():
                version = int(name[:20])
            if 0 <= version < before:
                (log / name).unlink(missing_ok=True)
