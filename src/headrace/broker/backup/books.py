"""What the writer of a backup knows of the folder: its manifests, the next sequence, and files that are not needed.

Everything here runs in the thread that the keeper waits for, but for the few figures that it reads between two rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headrace.broker.backup.authenticity import Authenticity
from headrace.broker.backup.errors import BackupAway, BackupDamaged, BackupOfAnother, NoSuchMoment
from headrace.broker.backup.folder import NEW, BackupFolder, Belongs, sequence_of
from headrace.broker.backup.manifest import FORMAT, Manifest, ManifestName, Part, encode
from headrace.broker.backup.pruning import Dropped, kept_moments, kept_names, removable
from headrace.broker.data_dir import DataDir

__all__ = ["Books"]

_log = logging.getLogger("headrace.broker")

_BASE_SERVES = 360
"""So many manifests are told on top of one full one, at the most."""


class Books:
    def __init__(self, folder: BackupFolder, data_dir: DataDir) -> None:
        self._folder = folder
        self._data_dir = data_dir
        self._begun = False
        self._names: list[ManifestName] = []
        self._dropped: list[Dropped] = []
        self._base: Manifest | None = None
        self._base_bytes = 0
        self.topics: dict[str, str] = {}
        self.next_sequence = 1
        """Of the manifest that is written next."""
        self.last_moment_ms = 0
        self.has_moment = False

    # Whose folder it is

    def expect_ours(self) -> Manifest | None:
        """The newest manifest that reads back, if there is any; raises where the folder is another broker's, or away.
        One that was never anybody's becomes ours.
        """
        folder, identity = self._folder, self._data_dir.identity
        ours = Belongs(FORMAT, identity.cluster_id, identity.line)
        found = folder.belongs()
        if found is None:
            if identity.backup == str(folder.path.absolute()):
                raise BackupAway(
                    f"the backup folder {folder.path} is empty, though this broker has a backup there",
                    hint="mount it again; to begin a new backup, give another folder",
                )
            folder.claim(ours)
        elif (found.cluster_id, found.line) != (ours.cluster_id, ours.line):
            raise BackupOfAnother(
                f"{folder.path} is the backup of broker {found.cluster_id} (data directory {found.line}),"
                f" and this is broker {ours.cluster_id} (data directory {ours.line})",
                hint="give this broker a folder of its own with --backup; one that was restored needs a new one, too",
            )
        names = folder.names()
        for name in reversed(names):
            try:
                newest = folder.load(name, names, authentic=False)
            except (BackupDamaged, NoSuchMoment):
                continue
            return newest
        return None

    def expect_newer(self, newest: Manifest | None) -> None:
        """Each start has a higher number: one that is not above that of the manifest is a copy's, or an old one's."""
        starts = self._data_dir.identity.starts
        if newest is not None and newest.starts >= starts:
            raise BackupOfAnother(
                f"{self._folder.path} has a backup of start {newest.starts} of this data directory (run {newest.run}),"
                f" and this is start {starts}: it is a copy, or an old state of it",
                hint="stop the other broker; or give this one a folder of its own with --backup",
            )

    # A round

    def look(self, run: str) -> dict[str, Part]:
        """Before each round: that the folder is there, and ours. The first time it says what the folder has."""
        if self._begun:
            self._expect_nobody_else(run)
            return {}
        newest = self.expect_ours()
        self.expect_newer(newest)
        self._names = self._folder.names()
        if self._names:
            self.next_sequence = self._names[-1].sequence + 1
            self.last_moment_ms = max(name.moment_ms for name in self._names)
        newest = self._trusted(newest)
        self.has_moment = newest is not None and newest.complete
        parts = {} if newest is None else newest.parts
        used = {(place, file) for place, part in parts.items() for file in part.files()}
        for path in list(self._folder.leftovers()):
            self._folder.remove(path)
        for place, file in self._folder.pieces():
            if (place, file) not in used and not file.endswith(NEW):
                created = sequence_of(file)
                self._dropped.append(Dropped(place, file, created or 0, self.next_sequence))
        self._begun = True
        return parts

    def _trusted(self, newest: Manifest | None) -> Manifest | None:
        """What is named in a manifest without the MAC of the key must not be named again in one with it."""
        if newest is None or not self._folder.has_key:
            return newest
        found = self._folder.authenticity(newest.name)
        if found is Authenticity.AUTHENTIC:
            return newest
        _log.warning(
            "the newest manifest in %s is not authentic: %s; everything is shipped again",
            self._folder.path,
            found.value,
        )
        return None

    def absent(self, parts: Mapping[str, Part]) -> dict[str, frozenset[str]]:
        """Files of the newest moment that somebody has removed or cut, by place. A mount that was away may come back as
        it was long ago.
        """
        there = self._folder.pieces()
        found: dict[str, frozenset[str]] = {}
        for place, part in parts.items():
            gone = {file for file, size in part.sizes().items() if there.get((place, file)) != size}
            if gone:
                found[place] = frozenset(gone)
        return found

    def _expect_nobody_else(self, run: str) -> None:
        identity = self._data_dir.identity
        found = self._folder.belongs()
        if found is None:
            raise BackupAway(
                f"the backup folder {self._folder.path} is empty: the mount may be away",
                hint="mount it again; what is missing is shipped then",
            )
        if (found.cluster_id, found.line) != (identity.cluster_id, identity.line):
            raise BackupOfAnother(
                f"{self._folder.path} has become the backup of broker {found.cluster_id} (data directory {found.line}),"
                f" and this is broker {identity.cluster_id} (data directory {identity.line})",
                hint="give each broker a folder of its own with --backup",
            )
        for name in self._folder.names():
            if name.sequence >= self.next_sequence:
                raise BackupOfAnother(
                    f"run {name.run} writes to {self._folder.path}, which run {run} was writing to: two brokers have"
                    " copies of one data directory",
                    hint="stop one of them, and give it a folder of its own with --backup",
                )

    def add(self, manifest: Manifest) -> None:
        """Write a manifest, which is in full; as what has changed, where that is much less."""
        written, base = manifest, self._base
        if base is not None and manifest.sequence - base.sequence < _BASE_SERVES:
            written = manifest.from_base(base)
            if len(encode(written)) * 2 > self._base_bytes and len(written.parts) > 1:
                written = manifest
        self._folder.add(written)
        if written.base is None:
            self._base, self._base_bytes = manifest, len(encode(manifest))
        self._names.append(written.name)
        self.next_sequence = manifest.sequence + 1
        self.last_moment_ms = manifest.moment_ms
        self.topics = manifest.topics
        self.has_moment = self.has_moment or manifest.complete

    def drop(self, place: str, before: Part | None, after: Part | None) -> None:
        """Of what the folder had of a place, this is what is named from now on."""
        if before is None:
            return
        kept = set() if after is None else set(after.files())
        self._dropped += [
            Dropped(place, file, sequence_of(file) or 0, self.next_sequence)
            for file in before.files()
            if file not in kept
        ]

    def prune(self, now_ms: int, keep_ms: int) -> None:
        moments = kept_moments(self._names, now_ms, keep_ms)
        kept = kept_names(self._names, moments)
        if len(kept) < len(self._names):
            for name in self._names:
                if name not in kept:
                    self._folder.remove(self._folder.manifests / name.file)
            self._folder.sync_dir(self._folder.manifests)
            self._names = [name for name in self._names if name in kept]
        gone = removable(self._dropped, moments)
        if not gone:
            return
        for one in gone:
            self._folder.remove(self._folder.piece(one.place, one.file))
        left = set(gone)
        self._dropped = [one for one in self._dropped if one not in left]
        for place in {one.place for one in gone}:
            self._folder.remove_empty_place(place)
