"""The index of the backup folder: its manifests, the next sequence number, and the files that no restore point needs.

The index retains every restore point of the last hour, the last one of each minute of the last day, and the last one of
each hour of the whole retention time. It always retains the newest. With a restore point every 10
seconds, the index retains about 1,800 of the last day, and 24 of each earlier day.

The manifests that list a piece have consecutive sequence numbers, and the piece's file name has the first of them. The
index can remove a piece when it has removed all these manifests. At start, the index does not know when an earlier run
dropped a piece. If the newest manifest does not list a piece, the index assumes that the next manifest is the first one
without it.

All methods run in the writer's thread. The writer reads the public attributes only between two rounds.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.broker.backup.errors import (
    BackupDamaged,
    BackupOwnedByOther,
    BackupUnavailable,
    NoSuchRestorePoint,
)
from headrace.broker.backup.folder import NEW, BackupFolder, Owner, sequence_of
from headrace.broker.backup.manifest import FORMAT, Authenticity, Manifest, ManifestName, Part, encode
from headrace.broker.storage.data_dir import DataDir

__all__ = ["BackupIndex", "DroppedPiece", "kept_names", "kept_restore_points", "removable_pieces"]

_log = logging.getLogger("headrace.broker")

_BASE_MANIFESTS_MAX = 360
"""The maximum number of manifests that are stored as a difference from the same full manifest."""


class BackupIndex:
    def __init__(self, folder: BackupFolder, data_dir: DataDir) -> None:
        self._folder = folder
        self._data_dir = data_dir
        self._is_open = False
        self._names: list[ManifestName] = []
        self._dropped: list[DroppedPiece] = []
        self._base: Manifest | None = None
        self._base_bytes = 0
        self.topics: dict[str, str] = {}
        self.next_sequence = 1
        """The sequence number of the next manifest."""
        self.last_restore_point_ms = 0
        self.has_restore_point = False

    # The owner of the folder

    def check_owner(self) -> Manifest | None:
        """Check that this broker owns the folder, or claim it if it has no owner. Returns the newest intact manifest.

        Raises if another broker owns the folder, or if the folder is unavailable.
        """
        folder, identity = self._folder, self._data_dir.identity
        ours = Owner(FORMAT, identity.cluster_id, identity.line)
        owner = folder.owner()
        if owner is None:
            if identity.backup == str(folder.path.absolute()):
                raise BackupUnavailable(
                    f"the backup folder {folder.path} is empty, but this broker wrote its last backup to it",
                    hint="mount the folder again, or choose another folder with --backup to start a new backup",
                )
            folder.claim(ours)
        elif (owner.cluster_id, owner.line) != (ours.cluster_id, ours.line):
            raise BackupOwnedByOther(
                f"{folder.path} is the backup of broker {owner.cluster_id} (data directory {owner.line}),"
                f" not of this broker {ours.cluster_id} (data directory {ours.line})",
                hint="choose another folder with --backup; a restored broker needs a new folder too",
            )
        names = folder.names()
        for name in reversed(names):
            try:
                newest = folder.load(name, names, authentic=False)
            except (BackupDamaged, NoSuchRestorePoint):
                continue
            return newest
        return None

    def check_starts(self, newest: Manifest | None) -> None:
        """Raise if the newest manifest has the number of this start of the broker, or a higher number.

        Such a manifest shows that the data directory is a copy, or was reset to an older state.
        """
        starts = self._data_dir.identity.starts
        if newest is not None and newest.starts >= starts:
            raise BackupOwnedByOther(
                f"{self._folder.path} has a backup from start {newest.starts} of this data directory (run"
                f" {newest.run}), but this is start {starts}: the data directory is a copy, or was reset to an older"
                " state",
                hint="stop the other broker, or choose another folder for this broker with --backup",
            )

    # A round

    def open_round(self, run: str) -> dict[str, Part]:
        """Check before each round that the folder exists and belongs to this broker.

        The first call returns the logs of the newest manifest. Later calls return an empty dictionary.
        """
        if self._is_open:
            self._check_no_other_writer(run)
            return {}
        newest = self.check_owner()
        self.check_starts(newest)
        self._names = self._folder.names()
        if self._names:
            self.next_sequence = self._names[-1].sequence + 1
            self.last_restore_point_ms = max(name.restore_point_ms for name in self._names)
        newest = self._manifest_if_trusted(newest)
        self.has_restore_point = newest is not None and newest.complete
        parts = {} if newest is None else newest.parts
        used = {(log_id, file) for log_id, part in parts.items() for file in part.files()}
        for path in list(self._folder.leftovers()):
            self._folder.remove(path)
        for log_id, file in self._folder.piece_sizes():
            if (log_id, file) not in used and not file.endswith(NEW):
                created = sequence_of(file)
                self._dropped.append(DroppedPiece(log_id, file, created or 0, self.next_sequence))
        self._is_open = True
        return parts

    def _manifest_if_trusted(self, newest: Manifest | None) -> Manifest | None:
        """Return the manifest unless this broker has a key and the manifest has no valid MAC.

        New manifests have a MAC, so they must not list pieces from a manifest that is not authentic.
        """
        if newest is None or not self._folder.has_key:
            return newest
        authenticity = self._folder.authenticity(newest.name)
        if authenticity is Authenticity.AUTHENTIC:
            return newest
        _log.warning(
            "the newest manifest in %s is not authentic: %s; copying all logs again",
            self._folder.path,
            authenticity.value,
        )
        return None

    def missing_files(self, parts: Mapping[str, Part]) -> dict[str, frozenset[str]]:
        """Return the files of the newest restore point that are missing or truncated, by log id.

        This can happen if the folder is mounted again with an older state.
        """
        sizes = self._folder.piece_sizes()
        missing: dict[str, frozenset[str]] = {}
        for log_id, part in parts.items():
            files = {file for file, size in part.sizes().items() if sizes.get((log_id, file)) != size}
            if files:
                missing[log_id] = frozenset(files)
        return missing

    def _check_no_other_writer(self, run: str) -> None:
        identity = self._data_dir.identity
        owner = self._folder.owner()
        if owner is None:
            raise BackupUnavailable(
                f"the backup folder {self._folder.path} is empty: it may not be mounted",
                hint="mount it again; the broker then copies the missing records",
            )
        if (owner.cluster_id, owner.line) != (identity.cluster_id, identity.line):
            raise BackupOwnedByOther(
                f"{self._folder.path} is now the backup of broker {owner.cluster_id} (data directory {owner.line}),"
                f" not of this broker {identity.cluster_id} (data directory {identity.line})",
                hint="choose another folder for one of the brokers with --backup",
            )
        for name in self._folder.names():
            if name.sequence >= self.next_sequence:
                raise BackupOwnedByOther(
                    f"runs {name.run} and {run} both write to {self._folder.path}: two brokers use copies of the same"
                    " data directory",
                    hint="stop one of the brokers, or choose another folder for it with --backup",
                )

    def add(self, manifest: Manifest) -> None:
        """Write a manifest. If the difference from the base is much smaller, write only the difference."""
        written, base = manifest, self._base
        if base is not None and manifest.sequence - base.sequence < _BASE_MANIFESTS_MAX:
            written = manifest.difference_from(base)
            if len(encode(written)) * 2 > self._base_bytes and len(written.parts) > 1:
                written = manifest
        self._folder.add(written)
        if written.base is None:
            self._base, self._base_bytes = manifest, len(encode(manifest))
        self._names.append(written.name)
        self.next_sequence = manifest.sequence + 1
        self.last_restore_point_ms = manifest.restore_point_ms
        self.topics = manifest.topics
        self.has_restore_point = self.has_restore_point or manifest.complete

    def drop(self, log_id: str, before: Part | None, after: Part | None) -> None:
        """Record that the next manifests will list the files of ``after`` instead of ``before``."""
        if before is None:
            return
        kept = set() if after is None else set(after.files())
        self._dropped += [
            DroppedPiece(log_id, file, sequence_of(file) or 0, self.next_sequence)
            for file in before.files()
            if file not in kept
        ]

    def prune(self, now_ms: int, keep_ms: int) -> None:
        restore_points = kept_restore_points(self._names, now_ms, keep_ms)
        kept = kept_names(self._names, restore_points)
        if len(kept) < len(self._names):
            for name in self._names:
                if name not in kept:
                    self._folder.remove(self._folder.manifests / name.file)
            self._folder.sync_dir(self._folder.manifests)
            self._names = [name for name in self._names if name in kept]
        unneeded = removable_pieces(self._dropped, restore_points)
        if not unneeded:
            return
        for piece in unneeded:
            self._folder.remove(self._folder.piece(piece.log_id, piece.file))
        removed = set(unneeded)
        self._dropped = [piece for piece in self._dropped if piece not in removed]
        for log_id in {piece.log_id for piece in unneeded}:
            self._folder.remove_empty_log(log_id)


_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000


class DroppedPiece(NamedTuple):
    log_id: str
    file: str
    created: int
    """Sequence number of the first manifest that can list the piece."""
    dropped: int
    """Sequence number of the first later manifest that does not list the piece."""


def kept_restore_points(names: Sequence[ManifestName], now_ms: int, keep_ms: int) -> list[ManifestName]:
    """Return the restore points to retain. ``names`` must be sorted."""
    kept: dict[tuple[int, int], ManifestName] = {}
    for name in names:
        age_ms = now_ms - name.restore_point_ms
        if age_ms < _HOUR_MS:
            slot = (1, name.sequence)
        elif age_ms > keep_ms:
            continue
        elif age_ms < _DAY_MS:
            slot = (_MINUTE_MS, name.restore_point_ms // _MINUTE_MS)
        else:
            slot = (_HOUR_MS, name.restore_point_ms // _HOUR_MS)
        kept[slot] = name
    if names:
        kept[0, 0] = names[-1]
    return sorted(set(kept.values()))


def kept_names(names: Sequence[ManifestName], restore_points: Iterable[ManifestName]) -> set[ManifestName]:
    """Return these restore points and the base manifests that they need."""
    needed = set(restore_points)
    bases = {name.base for name in needed}
    return needed | {name for name in names if name.sequence in bases and name.base == name.sequence}


def removable_pieces(
    dropped: Iterable[DroppedPiece], restore_points: Sequence[ManifestName]
) -> list[DroppedPiece]:
    """Return the pieces that no restore point needs. ``restore_points`` must be sorted."""
    sequences = [name.sequence for name in restore_points]
    return [
        piece
        for piece in dropped
        if bisect_left(sequences, piece.created) >= bisect_left(sequences, piece.dropped)
    ]
