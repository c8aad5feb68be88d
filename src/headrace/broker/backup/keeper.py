"""The backup of a running broker: round after round, off the event loop and out of the way of produce.

    look      a thread      the folder is there, is ours, and nobody else writes to it
    catch up  both          what is much is copied first, partition by partition: no moment yet
    cut       event loop    one moment of everything, in one turn (see ``cut``)
    ship      a thread      what has changed, then the manifest: from here on the moment can be restored
    prune     a thread      moments that are not kept any more, and pieces that no moment names

A round that fails leaves the folder as it was: what it had copied is not copied again, and the manifest before it
counts on. The broker goes on, says so once, and tries again; it never waits for the folder. Killed anywhere, it leaves
files that no manifest names, which the next start removes.

Two brokers cannot share a folder: ``backup.json`` names the data directory that it is of, and each manifest the run of
the broker that wrote it. A broker that finds another's there is refused; one that meets another's manifest while it
runs ships nothing more, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.backup.books import Books
from headrace.broker.backup.cut import Known, Plan, Source, missing, take
from headrace.broker.backup.errors import BackupError, BackupOfAnother
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.manifest import GROUPS, METADATA, Manifest, Part, place_of
from headrace.broker.backup.shipping import Shipping, SourceUnreadable, Stopped
from headrace.broker.daemon_thread import in_daemon_thread
from headrace.broker.offline_partition import OfflinePartition
from headrace.log.pace import Pace

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["BackupKeeper", "Standing"]

_log = logging.getLogger("headrace.broker")

_THREAD = "headrace-backup"
_MUCH_BYTES = 16 << 20
"""What is more than this is copied before the moment is taken, so that little is held open for it."""
_NOTED_BYTES = 1 << 30
"""After so much of a first copy it is noted how far it has come."""
_AT_REST_S = 60.0
"""How often a moment is taken where nothing has changed: so that the folder tells that the broker lives."""
_LAST_ROUND_S = 8.0
_SLOW_S = 60.0
_AT_ONCE = 100
"""So many partitions are looked at before others have a turn, but for the moment itself."""


@dataclass(slots=True)
class Standing:
    """How the backup is doing, for metrics."""

    moments: int = 0
    written_bytes: int = 0
    failures: int = 0
    last_moment_ms: int = 0
    last_taken_s: float = 0.0
    last_took_s: float = 0.0
    round_began_s: float | None = None
    """Of the round that is under way."""
    unreadable: int = 0
    """Partitions of which the newest moment has something older, because their own files cannot be read."""
    trouble: str | None = None
    refused: str | None = None


class BackupKeeper:
    def __init__(self, broker: Broker, folder: BackupFolder, books: Books) -> None:
        self._broker = broker
        self._folder = folder
        self._books = books
        self._known: dict[str, Known] = {}
        self._stopping = asyncio.Event()
        self._has_to_stop = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._unreadable: set[str] = set()
        self._only_archived: set[str] = set()
        self.run = secrets.token_hex(4)
        self.standing = Standing(last_taken_s=broker.clock.steady())

    # Life

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """What is left to ship is shipped, unless that takes too long: then the next start does it."""
        self._stopping.set()
        if self._task is None:
            return
        done, _ = await asyncio.wait([self._task], timeout=_LAST_ROUND_S)
        if not done:
            # A mount that hangs holds its thread for as long as it likes, but not the broker.
            self._has_to_stop.set()
            self._task.cancel()
            await asyncio.wait([self._task])
        self._task = None

    async def _keep(self) -> None:
        every_s = self._broker.settings.backup_every_s
        while not self._stopping.is_set() and self.standing.refused is None:
            await self.round()
            try:
                async with asyncio.timeout(every_s):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        if self.standing.refused is None and self.standing.trouble is None:
            await self.round()

    # How far behind

    def behind_records(self) -> int:
        """What the last moment has not got."""
        behind = 0
        for place, log in self._sources():
            known = self._known.get(place)
            ends_at = log.start_offset if known is None else known.part.end
            behind += max(0, log.high_watermark - ends_at)
        return behind

    def behind_s(self) -> float:
        """How long ago the last moment was taken, where something was written since."""
        return self._broker.clock.steady() - self.standing.last_taken_s if self.behind_records() else 0.0

    # One round

    async def round(self) -> bool:
        """Whether all is in the folder now that was there when it began."""
        standing, began_s = self.standing, self._broker.clock.steady()
        standing.round_began_s = began_s
        slow = asyncio.get_running_loop().call_later(_SLOW_S, self._say_slow)
        try:
            return await self._round(began_s)
        finally:
            slow.cancel()
            standing.round_began_s = None

    def _say_slow(self) -> None:
        _log.warning(
            "a round of the backup in %s has taken more than %g s and goes on: %d records are not in it yet;"
            " the first copy takes long, and so does a folder that does not answer",
            self._folder.path,
            _SLOW_S,
            self.behind_records(),
        )

    def under_way_s(self) -> float:
        """How long the round that is under way has lasted."""
        began_s = self.standing.round_began_s
        return 0.0 if began_s is None else self._broker.clock.steady() - began_s

    async def _round(self, began_s: float) -> bool:
        standing = self.standing
        try:
            await in_daemon_thread(_THREAD, self._look)
            # Here, because the data directory has one writer: from now on the folder is known to be ours.
            self._broker.note_backup(self._folder.path.absolute())
            await self._catch_up()
            await self._ship_moment()
        except Stopped:
            return False
        except BackupOfAnother as error:
            standing.refused = error.message
            standing.failures += 1
            _log.error("%s; nothing more is backed up before the next start", error)
            return False
        except (OSError, BackupError) as error:
            standing.failures += 1
            if standing.trouble is None:
                _log.error(
                    "the backup in %s does not go on: %s; the broker does, and it is tried again every %g s",
                    self._folder.path,
                    error,
                    self._broker.settings.backup_every_s,
                )
            standing.trouble = str(error)
            self._folder.forget_ready()
            return False
        standing.last_took_s = self._broker.clock.steady() - began_s
        if standing.trouble is not None:
            standing.trouble = None
            _log.info("the backup in %s goes on, and has caught up", self._folder.path)
        return True

    def _look(self) -> None:
        found = self._books.look(self.run)
        for place, part in found.items():
            self._known.setdefault(place, Known(part))
        if not found and self.standing.trouble is None:
            return
        missing = self._books.absent(self._parts())
        for place, files in missing.items():
            self._known[place] = replace(
                self._known[place], signature=None, state_version=None, missing=files
            )
        if missing:
            _log.warning(
                "%d files of the newest moment are not in %s, or not as long as they were: they are shipped again;"
                " headrace backup check tells which older moments lack them",
                sum(map(len, missing.values())),
                self._folder.path,
            )

    async def _catch_up(self) -> None:
        noted = 0
        for number, source in enumerate(self._sources()):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if missing(source, self._known.get(source.place)) <= _MUCH_BYTES:
                continue
            plan = self._take(source)
            if plan is None:
                continue
            try:
                noted += plan.missing
                await in_daemon_thread(_THREAD, partial(self._ship, [plan]))
            finally:
                plan.let_go()
            if noted > _NOTED_BYTES and not self._books.has_moment:
                noted = 0
                await in_daemon_thread(_THREAD, partial(self._books.add, self._manifest(complete=False)))

    async def _ship_moment(self) -> None:
        # From here to the plans nothing else runs: this is the moment.
        sources = self._sources()
        plans: list[Plan] = []
        try:
            plans += [plan for plan in map(self._take, sources) if plan is not None]
            offline = self._offline()
            taken_s = self._broker.clock.steady()
            places = {source.place for source in sources} | offline
            self._unreadable &= places
            gone = [place for place in self._known if place not in places]
            moment = self._manifest(complete=True)
            rests = not plans and not gone and moment.topics == self._books.topics
            if rests and taken_s - self.standing.last_taken_s < _AT_REST_S and self._books.has_moment:
                return
            manifest = await in_daemon_thread(_THREAD, partial(self._carry_out, plans, gone, moment, offline))
        finally:
            for plan in plans:
                plan.let_go()
        standing = self.standing
        standing.moments += 1
        standing.unreadable = len(manifest.stale)
        standing.last_moment_ms, standing.last_taken_s = manifest.taken_ms, taken_s

    def _carry_out(self, plans: list[Plan], gone: list[str], moment: Manifest, offline: set[str]) -> Manifest:
        self._ship(plans)
        for place in gone:
            self._books.drop(place, self._known.pop(place).part, None)
        stale = tuple(sorted(offline | self._unreadable))
        manifest = msgspec.structs.replace(moment, parts=self._parts(), stale=stale)
        self._books.add(manifest)
        self._books.prune(moment.last_trusted_ms, self._broker.settings.backup_keep_ms)
        return manifest

    def _ship(self, plans: list[Plan]) -> None:
        """In a thread. What is copied is known from then on, whatever becomes of the others."""
        settings = self._broker.settings
        pace = Pace(self._broker.clock, self._has_to_stop, settings.backup_bytes_per_s)
        shipping = Shipping(self._folder, self._books.next_sequence, self.run, pace, self._has_to_stop)
        for plan in plans:
            before = self._known.get(plan.place)
            try:
                part = shipping.ship(plan)
            except SourceUnreadable as error:
                if plan.place in (METADATA, GROUPS):
                    # What the partitions hold means something else under an older journal: no moment at all.
                    raise BackupError(error.message, hint=error.hint) from error
                # The others go on; of this one the folder keeps what it has.
                if plan.place not in self._unreadable:
                    self._unreadable.add(plan.place)
                    _log.error("%s", error)
                continue
            finally:
                self.standing.written_bytes += shipping.written_bytes
                shipping.written_bytes = 0
            self._unreadable.discard(plan.place)
            self._books.drop(plan.place, None if before is None else before.part, part)
            self._known[plan.place] = plan.known(part)
            if shipping.only_archived is None:
                self._only_archived.discard(plan.place)
            elif plan.place not in self._only_archived:
                self._only_archived.add(plan.place)
                _log.error("%s; it lies in the archive only", shipping.only_archived)
            shipping.only_archived = None
        for path in shipping.differing:
            _log.warning("%s is not what the backup had of it: it is copied again, whole", path)

    # What there is

    def _take(self, source: Source) -> Plan | None:
        try:
            return take(source, self._known.get(source.place))
        except OSError as error:
            if source.place in (METADATA, GROUPS):
                raise
            if source.place not in self._unreadable:
                self._unreadable.add(source.place)
                _log.error("%s cannot be backed up: %s", source.log.directory, error)
            return None

    def _sources(self) -> list[Source]:
        broker = self._broker
        metadata, groups = broker.journals
        found = [Source(METADATA, metadata.log), Source(GROUPS, groups.log)]
        for topic in broker.catalog.topics():
            if not topic.is_volatile:
                found += [
                    Source(place_of(topic.id, index), partition.log)
                    for index, partition in enumerate(broker.partitions.of_topic(topic.name))
                    if not isinstance(partition, OfflinePartition)
                ]
        return found

    def _offline(self) -> set[str]:
        """Of partitions whose files cannot be read, the folder keeps what it has."""
        topics = self._broker.catalog
        found = set()
        for name, index in self._broker.partitions.offline:
            topic = topics.topic(name)
            if topic is not None:
                found.add(place_of(topic.id, index))
        return found

    def _parts(self) -> dict[str, Part]:
        return {place: known.part for place, known in self._known.items()}

    def _manifest(self, *, complete: bool) -> Manifest:
        """All of a moment but its parts, if it is complete."""
        broker = self._broker
        identity = broker.identity
        return Manifest(
            sequence=self._books.next_sequence,
            run=self.run,
            cluster_id=identity.cluster_id,
            line=identity.line,
            moment_ms=max(broker.trusted_time.now_ms(), self._books.last_moment_ms),
            wall_ms=broker.clock.now_ms(),
            starts=identity.starts,
            next_producer_id=identity.next_producer_id,
            last_trusted_ms=broker.trusted_time.now_ms(),
            complete=complete,
            topics={topic.id.hex(): topic.name for topic in broker.catalog.topics() if not topic.is_volatile},
            parts={} if complete else self._parts(),
            restored=broker.restored,
        )
