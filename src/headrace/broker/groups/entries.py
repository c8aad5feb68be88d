"""What the coordinators write to their journal: one JSON object per entry, told apart by ``kind``.

    group         a group as of its last complete rebalance, or emptied: generation, protocol, leader, members
                  with their subscriptions and assignments. Replaces the entry before it.
    group-gone    the group and all its offsets are deleted
    offsets       what one OffsetCommit stored: it is there whole or not at all
    offsets-gone  single offsets deleted or expired
    topic-gone    the topic was deleted, and with it every group's offsets for it
    transaction   a transactional id as of its last decision: who holds it, and how its last transaction ended.
                  One that was committed turns the offsets that were pending for it into committed ones, and
                  one that was aborted drops them, by this very entry.
    transaction-offsets  offsets that wait for the end of an open transaction
    transaction-gone     the transactional id is forgotten

After a crash the fold of what was synced is the state: a group that was in the middle of a rebalance is back
at its last complete one, and its members find out by their next heartbeat. That a transaction is open needs no
entry: the partitions that it wrote to know.

Bytes are base64. Times are milliseconds since 1970 by the clock that the broker trusts.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from headrace.errors import DamagedState

__all__ = [
    "Entry",
    "GroupEntry",
    "GroupGone",
    "MemberEntry",
    "OffsetRow",
    "OffsetsEntry",
    "OffsetsGone",
    "TopicGone",
    "Touched",
    "TransactionEntry",
    "TransactionGone",
    "TransactionOffsets",
    "decode_entry",
    "encode_entry",
]


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class MemberEntry(msgspec.Struct, frozen=True, gc=False):
    id: str
    instance: str | None
    client: str
    host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class OffsetRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One committed offset. ``expires_ms`` is −1 unless the client asked for a retention of its own."""

    topic: str
    partition: int
    offset: Int64
    leader_epoch: int
    metadata: str
    committed_ms: Int64
    expires_ms: Int64


class GroupEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="group"):
    group: str
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    since_ms: int
    members: tuple[MemberEntry, ...]


class GroupGone(msgspec.Struct, frozen=True, tag_field="kind", tag="group-gone"):
    group: str


class OffsetsEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="offsets"):
    group: str
    rows: list[OffsetRow]


class OffsetsGone(msgspec.Struct, frozen=True, tag_field="kind", tag="offsets-gone"):
    group: str
    partitions: list[tuple[str, int]]


class TopicGone(msgspec.Struct, frozen=True, tag_field="kind", tag="topic-gone"):
    topic: str


class Touched(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A partition in which an ended transaction needs its marker, known by the topic's id, the partition, the
    producer and its first offset there: no two transactions of a producer begin at the same offset.
    """

    topic: bytes
    partition: int
    producer: Int64
    first_offset: Int64
    epoch: int
    committed: bool


class TransactionEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="transaction"):
    """``ended`` is how the last transaction ended, ``None`` if there was none since the id was taken over.

    ``decides`` is false where an earlier entry is only said again. ``touched`` are the partitions whose markers
    may not be on disk yet, also those of earlier transactions. ``next_producer`` takes the place of
    ``producer`` when the markers are written, because the epochs of ``producer`` are used up.
    """

    id: str
    producer: Int64
    epoch: int
    last_epoch: int
    previous_producer: Int64
    next_producer: Int64
    timeout_ms: int
    ended: Literal["commit", "abort"] | None
    decides: bool
    bumped: bool
    began_ms: Int64
    changed_ms: Int64
    touched: tuple[Touched, ...] = ()


class TransactionOffsets(msgspec.Struct, frozen=True, tag_field="kind", tag="transaction-offsets"):
    id: str
    group: str
    rows: list[OffsetRow]


class TransactionGone(msgspec.Struct, frozen=True, tag_field="kind", tag="transaction-gone"):
    id: str


Entry = (
    GroupEntry
    | GroupGone
    | OffsetsEntry
    | OffsetsGone
    | TopicGone
    | TransactionEntry
    | TransactionOffsets
    | TransactionGone
)

_decoder = msgspec.json.Decoder(Entry)
_encoder = msgspec.json.Encoder()


def encode_entry(entry: Entry) -> bytes:
    return _encoder.encode(entry)


def decode_entry(raw: bytes) -> Entry:
    try:
        entry: Entry = _decoder.decode(raw)
    # Besides its own error the parser lets these through.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise DamagedState(
            "an entry of the groups' and transactions' journal does not read as one",
            detail=f"{error}; the entry begins {raw[:80]!r}",
            hint="restore the data directory from a backup; offsets are never dropped to get started",
        ) from error
    return entry
