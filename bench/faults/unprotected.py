"""The product with one protection taken out, each by name: the oracle must notice every one of them.

An oracle that has never objected proves nothing. These run only in processes of ``bench.faults.starter``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.faults.unprotected_amplification import (
    no_pattern_limit,
    no_pending_limit,
    no_response_limit,
    no_session_limit,
)
from bench.faults.unprotected_backup import no_manifest_behind_its_pieces, no_one_moment
from bench.faults.unprotected_serve import (
    no_back_pressure,
    no_forgetting,
    no_replay_fence,
    no_replay_marks,
    no_resuming,
)

__all__ = ["PROTECTIONS", "NarrowHash"]

_HELD_BACK_S = 0.04


def no_write_before_ack() -> None:
    """Bytes wait in the process for a while, and syncs return at once: an ack says nothing about the disk."""
    from headrace.files import Buffer, SystemFile

    write, read, size = SystemFile.pwrite, SystemFile.pread, SystemFile.size
    truncate, close = SystemFile.truncate, SystemFile.close
    waiting: dict[SystemFile, list[tuple[bytes, int]]] = {}
    lock = threading.RLock()

    def flush(file: SystemFile) -> None:
        with lock:
            for data, position in waiting.pop(file, []):
                write(file, [data], position)

    def flush_all() -> None:
        while True:
            time.sleep(_HELD_BACK_S)
            for file in list(waiting):
                flush(file)

    def pwrite(self: SystemFile, data: Sequence[Buffer], position: int) -> int:
        whole = b"".join(data)
        with lock:
            waiting.setdefault(self, []).append((whole, position))
        return len(whole)

    def first(act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(self: SystemFile, *arguments: Any) -> Any:
            flush(self)
            return act(self, *arguments)

        return acted

    patches: dict[str, Any] = {
        "pwrite": pwrite,
        "sync": lambda self: None,
        "pread": first(read),
        "pread_ready": first(read),
        "size": first(size),
        "truncate": first(truncate),
        "close": first(close),
    }
    for name, patch in patches.items():
        setattr(SystemFile, name, patch)
    threading.Thread(target=flush_all, daemon=True).start()


class NarrowHash:
    """In the place of a hash: four values are all that it has."""

    def __init__(self, data: bytes, **_: object) -> None:
        self._data = data

    def digest(self) -> bytes:
        return bytes([sum(self._data) & 3]) * 16


def no_wide_hash() -> None:
    """Compaction tells long keys apart by two bits."""
    from headrace.log import key_map

    vars(key_map)["blake2b"] = NarrowHash


def no_producer_state() -> None:
    """A start forgets which batches producers have sent before."""
    from headrace.log.producers import Producers

    Producers.restore = lambda self, producer: None  # type: ignore[method-assign]
    note = Producers.note

    def forgetful(self: Producers, header: Any, base_offset: int, now_ms: int) -> None:
        if starting:
            return
        note(self, header, base_offset, now_ms)

    from headrace.broker.broker import Broker

    starting = True
    start = Broker.start

    async def started(self: Broker) -> None:
        nonlocal starting
        starting = False
        await start(self)

    Producers.note = forgetful  # type: ignore[method-assign]
    Broker.start = started  # type: ignore[method-assign]


def no_sync_errors() -> None:
    """A sync that failed counts as done."""
    from headrace.files import SystemFile

    sync = SystemFile.sync

    def careless(self: SystemFile) -> None:
        with contextlib.suppress(OSError):
            sync(self)

    SystemFile.sync = careless  # type: ignore[method-assign]


def no_look_at_what_was_written() -> None:
    """A write that failed or was short counts as done."""
    from headrace.files import Buffer, SystemFile

    write = SystemFile.pwrite

    def careless(self: SystemFile, data: Sequence[Buffer], position: int) -> int:
        with contextlib.suppress(OSError):
            write(self, data, position)
        return sum(map(len, data))

    SystemFile.pwrite = careless  # type: ignore[method-assign]


class _NamedId(bytes):
    """A topic id whose text, which files are named by, is the name that a client chose."""

    name = ""

    def hex(self, *_: Any) -> str:
        return self.name


def no_names_kept_out_of_paths() -> None:
    """Any name is taken for a topic, and its directory is called by it."""
    from headrace.broker import catalog
    from headrace.broker.topic import Topic

    new_topic = catalog.Catalog._new_topic

    def named(self: catalog.Catalog, *arguments: Any) -> Topic:
        topic = new_topic(self, *arguments)
        marked = _NamedId(topic.id)
        marked.name = topic.name
        return dataclasses.replace(topic, id=marked)

    vars(catalog)["name_fault"] = lambda name: None
    catalog.Catalog._new_topic = named  # type: ignore[method-assign,assignment]


def no_range_check() -> None:
    """A reader whose offset was deleted is moved to the start of the log without a word."""
    from headrace.log.reader import LogReader, ReadPlan

    plan = LogReader.plan

    def moved(self: LogReader, offset: int, *arguments: Any, **keywords: Any) -> ReadPlan | None:
        return plan(self, max(offset, self.log.start_offset), *arguments, **keywords)

    LogReader.plan = moved  # type: ignore[method-assign]


def no_stall_notice() -> None:
    """The coordinator takes its own absence for that of the members."""
    from headrace.broker.groups.timers import Timers

    Timers.put_off = lambda self, by_s: None  # type: ignore[method-assign]


def no_frame_limit() -> None:
    """Any size is believed, up to what this machine can bear, and its memory taken at once."""
    from headrace.broker.framing import Framing

    begin = Framing._begin_large

    def believing(self: Framing, size: int, first: int) -> None:
        begin(self, size, first)
        whole = bytearray(b"\1") * min(size, 200 << 20)
        whole[: self._filled] = self._large[: self._filled]  # type: ignore[index]
        self._large = whole

    make = Framing.__init__
    Framing._begin_large = believing  # type: ignore[method-assign]
    Framing.__init__ = lambda self, *_: make(self, 2**31 - 1)  # type: ignore[method-assign]


def no_element_limit() -> None:
    """As many elements are read as a request claims to have."""
    from headrace.broker import asking

    vars(asking)["elements_max_of"] = lambda api, limit: 2**62


def no_malformed_check() -> None:
    """What goes wrong in reading a request goes wrong wherever it likes."""
    from headrace.wire import compiled, fetch, produce
    from headrace.wire.errors import WireError

    for module in (compiled, fetch, produce):
        vars(module)["MALFORMED"] = (WireError,)


def no_unpack_limit() -> None:
    """A batch unpacks to whatever it does, and may have as many records."""
    from headrace.broker import limits
    from headrace.records import RecordLimits

    vast = RecordLimits(unpacked_bytes_max=1 << 30, records_max=10**9, headers_max=10**9)
    believed = limits.limits_of
    from headrace.broker import broker

    vars(broker)["limits_of"] = lambda configs: dataclasses.replace(believed(configs), records=vast)


def no_record_walk() -> None:
    """A batch is taken for what its header says, if the checksum is right."""
    from headrace.broker import partition, walks
    from headrace.records import Checked
    from headrace.records.check import intact_header

    def trusting(batch: Any, limits: Any) -> Checked:
        header = intact_header(batch)
        return Checked(header.max_timestamp, header.base_timestamp, False)

    vars(partition)["checked_batch"] = trusting
    vars(walks)["check_batch"] = trusting


def no_sweep() -> None:
    """Nobody looks whether a client is idle or slow."""
    from headrace.broker.connection import Connection

    Connection.sweep = lambda self, now: None  # type: ignore[method-assign]


def no_answer_limit() -> None:
    """Answers are made for as long as requests come, whether anybody takes them or not."""
    from headrace.broker import broker as brokers
    from headrace.broker.connection import Connection

    Connection.pause_writing = lambda self: None  # type: ignore[method-assign]
    believed = brokers.limits_of
    vars(brokers)["limits_of"] = lambda configs: dataclasses.replace(
        believed(configs),
        unsent_bytes_max=2**40,
        all_answers_bytes_max=2**40,
        in_flight_max=10**6,
        slow_ms_max=10**9,
    )


def no_fencing() -> None:
    """Whoever names the producer that holds an id is taken for it, whatever the epoch."""
    from headrace.broker.transactions.coordinator import TransactionCoordinator
    from headrace.log.producers import Producers, StaleProducerEpoch

    find, end, check = TransactionCoordinator._find, TransactionCoordinator.end, Producers.check

    def epoch_of(self: TransactionCoordinator, transactional_id: str, epoch: int) -> int:
        held = self._by_id.get(transactional_id)
        return epoch if held is None else held.epoch

    def found(self: TransactionCoordinator, transactional_id: str, producer_id: int, epoch: int) -> Any:
        return find(self, transactional_id, producer_id, epoch_of(self, transactional_id, epoch))

    async def ended(
        self: TransactionCoordinator, transactional_id: str, producer_id: int, epoch: int, **how: Any
    ) -> Any:
        return await end(self, transactional_id, producer_id, epoch_of(self, transactional_id, epoch), **how)

    def careless(self: Producers, header: Any, **how: Any) -> Any:
        with contextlib.suppress(StaleProducerEpoch):
            return check(self, header, **how)
        return None

    TransactionCoordinator._find = found  # type: ignore[method-assign]
    TransactionCoordinator.end = ended  # type: ignore[method-assign]
    Producers.check = careless  # type: ignore[method-assign]


PROTECTIONS: dict[str, Callable[[], None]] = {
    "wide-hash": no_wide_hash,
    "write-before-ack": no_write_before_ack,
    "producer-state": no_producer_state,
    "sync-errors": no_sync_errors,
    "write-results": no_look_at_what_was_written,
    "names": no_names_kept_out_of_paths,
    "range-check": no_range_check,
    "stall-notice": no_stall_notice,
    "frame-limit": no_frame_limit,
    "element-limit": no_element_limit,
    "malformed-check": no_malformed_check,
    "unpack-limit": no_unpack_limit,
    "record-walk": no_record_walk,
    "sweep": no_sweep,
    "answer-limit": no_answer_limit,
    "fencing": no_fencing,
    "backup-order": no_manifest_behind_its_pieces,
    "backup-one-moment": no_one_moment,
    "response-limit": no_response_limit,
    "pending-limit": no_pending_limit,
    "session-limit": no_session_limit,
    "pattern-limit": no_pattern_limit,
    "back-pressure": no_back_pressure,
    "forgetting": no_forgetting,
    "resuming": no_resuming,
    "replay-marks": no_replay_marks,
    "replay-fence": no_replay_fence,
}
