"""Removes a named protection from the product. The oracle must detect each removal.

An oracle that has never reported a problem might be unable to report any. These removals run only in processes of
``faults.servers.broker_starter``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from faults.patch import patch
from faults.unprotected.amplification import (
    no_pattern_limit,
    no_pending_limit,
    no_response_limit,
    no_session_limit,
)
from faults.unprotected.backup import manifest_before_its_pieces, partitions_at_different_points
from faults.unprotected.serve import (
    no_back_pressure,
    no_body_limit,
    no_escaping,
    no_escaping_and_no_policy,
    no_first_message_check,
    no_forgetting,
    no_host_check,
    no_http_sweep,
    no_letter_states,
    no_message_check,
    no_message_limit,
    no_origin_check,
    no_page_file_allowlist,
    no_parameter_check,
    no_pg_deadlines,
    no_replay_fence,
    no_requests_ahead_limit,
    no_resuming,
    no_socket_limit,
    no_unsent_limit,
    no_waiting_for_the_log,
)
from faults.unprotected.sql import (
    no_authorizer,
    no_column_names,
    no_row_limit,
    no_step_limit,
    no_view_names,
)

__all__ = ["PROTECTIONS", "NarrowHash"]

_WRITE_DELAY_S = 0.04


def no_write_before_ack() -> None:
    """Bytes wait in the process for a while, and syncs return immediately, so an ack does not mean that data is on
    disk.
    """
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
            time.sleep(_WRITE_DELAY_S)
            for file in list(waiting):
                flush(file)

    def pwrite(self: SystemFile, data: Sequence[Buffer], position: int) -> int:
        whole = b"".join(data)
        with lock:
            waiting.setdefault(self, []).append((whole, position))
        return len(whole)

    def flush_first(call: Callable[..., Any]) -> Callable[..., Any]:
        def flush_and_call(self: SystemFile, *arguments: Any) -> Any:
            flush(self)
            return call(self, *arguments)

        return flush_and_call

    replacements: dict[str, Any] = {
        "pwrite": pwrite,
        "sync": lambda self: None,
        "pread": flush_first(read),
        "pread_nowait": flush_first(read),
        "size": flush_first(size),
        "truncate": flush_first(truncate),
        "close": flush_first(close),
    }
    for name, replacement in replacements.items():
        patch(SystemFile, name, replacement)
    threading.Thread(target=flush_all, daemon=True).start()


class NarrowHash:
    """A hash with four values."""

    def __init__(self, data: bytes, **_: object) -> None:
        self._data = data

    def digest(self) -> bytes:
        return bytes([sum(self._data) & 3]) * 16


def no_wide_hash() -> None:
    """Compaction compares long keys by a hash of two bits."""
    from headrace.log import key_map

    patch(key_map, "blake2b", NarrowHash)


def no_producer_state() -> None:
    """A start forgets the batches that producers have sent."""
    from headrace.log.producers import Producers

    patch(Producers, "restore", lambda self, producer: None)
    note = Producers.note

    def note_unless_starting(self: Producers, header: Any, base_offset: int, now_ms: int) -> None:
        if starting:
            return
        note(self, header, base_offset, now_ms)

    from headrace.broker.broker import Broker

    starting = True
    start = Broker.start

    async def start_and_note(self: Broker) -> None:
        nonlocal starting
        starting = False
        await start(self)

    patch(Producers, "note", note_unless_starting)
    patch(Broker, "start", start_and_note)


def no_sync_errors() -> None:
    """A failed sync counts as successful."""
    from headrace.files import SystemFile

    sync = SystemFile.sync

    def sync_without_errors(self: SystemFile) -> None:
        with contextlib.suppress(OSError):
            sync(self)

    patch(SystemFile, "sync", sync_without_errors)


def no_write_results() -> None:
    """A failed or short write counts as successful."""
    from headrace.files import Buffer, SystemFile

    write = SystemFile.pwrite

    def write_without_errors(self: SystemFile, data: Sequence[Buffer], position: int) -> int:
        with contextlib.suppress(OSError):
            write(self, data, position)
        return sum(map(len, data))

    patch(SystemFile, "pwrite", write_without_errors)


class _NamedId(bytes):
    """A topic id whose text, which names files, is the topic name that the client chose."""

    name = ""

    def hex(self, *_: Any) -> str:
        return self.name


def names_as_paths() -> None:
    """A topic can have any name, and the name is also that of its directory."""
    from headrace.broker.topics import catalog
    from headrace.broker.topics.topic import Topic

    new_topic = catalog.Catalog._new_topic

    def new_named_topic(self: catalog.Catalog, *arguments: Any) -> Topic:
        topic = new_topic(self, *arguments)
        named_id = _NamedId(topic.id)
        named_id.name = topic.name
        return dataclasses.replace(topic, id=named_id)

    patch(catalog, "name_fault", lambda name: None)
    patch(catalog.Catalog, "_new_topic", new_named_topic)


def no_range_check() -> None:
    """A reader at a deleted offset is silently moved to the start of the log."""
    from headrace.log.reader import LogReader, ReadPlan

    plan = LogReader.plan

    def plan_from_start(self: LogReader, offset: int, *arguments: Any, **keywords: Any) -> ReadPlan | None:
        return plan(self, max(offset, self.log.start_offset), *arguments, **keywords)

    patch(LogReader, "plan", plan_from_start)


def no_stall_notice() -> None:
    """After a stall of its own, the coordinator treats the members as expired."""
    from headrace.broker.groups.timers import Timers

    patch(Timers, "postpone", lambda self, by_s: None)


def no_frame_limit() -> None:
    """Any frame size up to the limit of this machine is trusted, and its memory is allocated immediately."""
    from headrace.broker.net.request import Framing

    begin = Framing._begin_large

    def allocate_claimed_size(self: Framing, size: int, first: int) -> None:
        begin(self, size, first)
        whole = bytearray(b"\1") * min(size, 200 << 20)
        whole[: self._filled] = self._large[: self._filled]  # type: ignore[index]
        self._large = whole

    init = Framing.__init__
    patch(Framing, "_begin_large", allocate_claimed_size)
    patch(Framing, "__init__", lambda self, *_: init(self, 2**31 - 1))


def no_element_limit() -> None:
    """The decoder reads as many elements as a request claims."""
    _raise_limits(request_elements_max=2**62)


def no_malformed_check() -> None:
    """Only ``WireError`` counts as a decoding error; other exceptions of the decoder are not handled."""
    from headrace.wire import fetch, produce, readers
    from headrace.wire.primitives import WireError

    for module in (readers, fetch, produce):
        patch(module, "MALFORMED", (WireError,))


def no_unpack_limit() -> None:
    """A batch can decompress to any size and any number of records."""
    from headrace.records import RecordLimits

    _raise_limits(records=RecordLimits(unpacked_bytes_max=1 << 30, records_max=10**9, headers_max=10**9))


def no_record_walk() -> None:
    """The header of a batch is trusted if the checksum is correct."""
    from headrace.broker.handlers import produce
    from headrace.broker.storage import partition
    from headrace.records import BatchSummary
    from headrace.records.batch import intact_header

    def check_header_only(batch: Any, limits: Any) -> BatchSummary:
        header = intact_header(batch)
        return BatchSummary(header.max_timestamp, header.base_timestamp, False)

    for module in (partition, produce):
        patch(module, "check_batch", check_header_only)


def no_sweep() -> None:
    """Idle and slow clients stay connected."""
    from headrace.broker.net.connection import Connection

    patch(Connection, "sweep", lambda self, now: None)


def no_scrape_room() -> None:
    """Connections to the metrics port stay open, with or without requests."""
    from headrace.broker.metrics import endpoint as metrics_port

    make_room = metrics_port.MetricsPort._make_room

    def make_room_ignoring_silent(self: metrics_port.MetricsPort) -> bool:
        self._silent.clear()
        return make_room(self)

    patch(metrics_port.MetricsPort, "_make_room", make_room_ignoring_silent)


def no_answer_limit() -> None:
    """The broker produces responses as long as requests arrive, even if the client does not read them."""
    from headrace.broker.net.connection import Connection

    patch(Connection, "pause_writing", lambda self: None)
    _raise_limits(
        unsent_bytes_max=2**40, all_responses_bytes_max=2**40, in_flight_max=10**6, slow_ms_max=10**9
    )


def _raise_limits(**limits: Any) -> None:
    from headrace.broker import broker
    from headrace.broker.limits import limits_of

    patch(broker, "limits_of", lambda configs: dataclasses.replace(limits_of(configs), **limits))


def no_fencing() -> None:
    """A producer is accepted by its id, whatever its epoch is."""
    from headrace.broker.transactions.coordinator import TransactionCoordinator
    from headrace.log.producers import Producers, StaleProducerEpoch

    find, end, check = TransactionCoordinator._find, TransactionCoordinator.end, Producers.check

    def epoch_of(self: TransactionCoordinator, transactional_id: str, epoch: int) -> int:
        transaction = self._by_id.get(transactional_id)
        return epoch if transaction is None else transaction.epoch

    def find_by_id(self: TransactionCoordinator, transactional_id: str, producer_id: int, epoch: int) -> Any:
        return find(self, transactional_id, producer_id, epoch_of(self, transactional_id, epoch))

    async def end_by_id(
        self: TransactionCoordinator, transactional_id: str, producer_id: int, epoch: int, **options: Any
    ) -> Any:
        return await end(
            self, transactional_id, producer_id, epoch_of(self, transactional_id, epoch), **options
        )

    def check_without_epoch(self: Producers, header: Any, **options: Any) -> Any:
        with contextlib.suppress(StaleProducerEpoch):
            return check(self, header, **options)
        return None

    patch(TransactionCoordinator, "_find", find_by_id)
    patch(TransactionCoordinator, "end", end_by_id)
    patch(Producers, "check", check_without_epoch)


PROTECTIONS: dict[str, Callable[[], None]] = {
    "wide-hash": no_wide_hash,
    "write-before-ack": no_write_before_ack,
    "producer-state": no_producer_state,
    "sync-errors": no_sync_errors,
    "write-results": no_write_results,
    "names": names_as_paths,
    "range-check": no_range_check,
    "stall-notice": no_stall_notice,
    "frame-limit": no_frame_limit,
    "element-limit": no_element_limit,
    "malformed-check": no_malformed_check,
    "unpack-limit": no_unpack_limit,
    "record-walk": no_record_walk,
    "sweep": no_sweep,
    "answer-limit": no_answer_limit,
    "scrape-room": no_scrape_room,
    "fencing": no_fencing,
    "backup-order": manifest_before_its_pieces,
    "backup-single-turn": partitions_at_different_points,
    "response-limit": no_response_limit,
    "pending-limit": no_pending_limit,
    "session-limit": no_session_limit,
    "pattern-limit": no_pattern_limit,
    "back-pressure": no_back_pressure,
    "forgetting": no_forgetting,
    "resuming": no_resuming,
    "log-waits": no_waiting_for_the_log,
    "letter-states": no_letter_states,
    "replay-fence": no_replay_fence,
    "sql-authorizer": no_authorizer,
    "sql-steps": no_step_limit,
    "sql-rows": no_row_limit,
    "view-names": no_view_names,
    "column-names": no_column_names,
    "page-escaping": no_escaping,
    "page-escaping-and-policy": no_escaping_and_no_policy,
    "origin-check": no_origin_check,
    "host-check": no_host_check,
    "body-limit": no_body_limit,
    "message-limit": no_message_limit,
    "socket-limit": no_socket_limit,
    "requests-ahead": no_requests_ahead_limit,
    "message-check": no_message_check,
    "parameter-check": no_parameter_check,
    "first-message": no_first_message_check,
    "http-sweep": no_http_sweep,
    "pg-deadlines": no_pg_deadlines,
    "unsent-limit": no_unsent_limit,
    "page-file-allowlist": no_page_file_allowlist,
}
