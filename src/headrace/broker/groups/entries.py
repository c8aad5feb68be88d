"""The entries of the journal of groups and transactions. Each entry is a JSON object; ``kind`` is its type.

    group         the state of a group after its last complete rebalance, or after its last member left: generation,
                  protocol, leader, and members with their subscriptions and assignments. It replaces the group's
                  previous entry.
    group-gone    the group and all its offsets were deleted
    offsets       the offsets of one OffsetCommit
    offsets-gone  single offsets were deleted or expired
    topic-gone    the topic was deleted, and all groups' offsets for it
    transaction   the state of a transactional id: its producer, and how its last transaction ended. If
                  ``ended`` is "commit", the entry also commits the pending offsets of the transaction. If it is
                  "abort", the entry drops them.
    transaction-offsets  pending offsets of an open transaction
    transaction-gone     the transactional id expired

After a crash, the broker rebuilds the state from the synced entries, in order. A group that was in the middle of a
rebalance returns to its previous generation. Its members notice this by the response to their next heartbeat. An open
transaction has no entry, because the logs of its partitions record that the transaction is open.

Bytes are base64. Times are milliseconds since 1970 by the broker's trusted time (``headrace.clock.TrustedTime``).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from headrace.errors import DamagedState

__all__ = [
    "Entry",
    "GroupDeleted",
    "GroupEntry",
    "MarkerKey",
    "MemberEntry",
    "OffsetRow",
    "OffsetsDeleted",
    "OffsetsEntry",
    "PendingMarker",
    "TopicDeleted",
    "TransactionEntry",
    "TransactionOffsets",
    "TransactionalIdDeleted",
    "decode_entry",
    "encode_entry",
]


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
MarkerKey = tuple[bytes, int, int, int]
"""Topic id, partition, producer id, and the first offset of the transaction in the partition."""


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
    """A committed offset. ``expires_ms`` is -1 unless the client set a retention time for the offset."""

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


class GroupDeleted(msgspec.Struct, frozen=True, tag_field="kind", tag="group-gone"):
    group: str


class OffsetsEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="offsets"):
    group: str
    rows: list[OffsetRow]


class OffsetsDeleted(msgspec.Struct, frozen=True, tag_field="kind", tag="offsets-gone"):
    group: str
    partitions: list[tuple[str, int]]


class TopicDeleted(msgspec.Struct, frozen=True, tag_field="kind", tag="topic-gone"):
    topic: str


class PendingMarker(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A commit or abort marker that may not be on disk yet.

    Its key identifies the transaction in the partition, because two transactions of a producer never begin at the same
    offset.
    """

    topic: bytes
    partition: int
    producer: Int64
    first_offset: Int64
    epoch: int
    committed: bool

    @property
    def key(self) -> MarkerKey:
        return self.topic, self.partition, self.producer, self.first_offset


class TransactionEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="transaction"):
    """The state of a transactional id.

    ``ended`` is how the last transaction ended, or ``None`` if the current owner has not ended a transaction yet.
    ``decides`` is false if the entry only repeats an earlier decision. ``pending_markers`` are the markers that may not
    be on disk yet, including those of earlier transactions. If ``producer`` has used all its epochs, ``next_producer``
    is the producer id that replaces it when the markers are written.
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
    pending_markers: tuple[PendingMarker, ...] = msgspec.field(name="touched", default=())


class TransactionOffsets(msgspec.Struct, frozen=True, tag_field="kind", tag="transaction-offsets"):
    id: str
    group: str
    rows: list[OffsetRow]


class TransactionalIdDeleted(msgspec.Struct, frozen=True, tag_field="kind", tag="transaction-gone"):
    id: str


Entry = (
    GroupEntry
    | GroupDeleted
    | OffsetsEntry
    | OffsetsDeleted
    | TopicDeleted
    | TransactionEntry
    | TransactionOffsets
    | TransactionalIdDeleted
)

_decoder = msgspec.json.Decoder(Entry)
_encoder = msgspec.json.Encoder()


def encode_entry(entry: Entry) -> bytes:
    return _encoder.encode(entry)


def decode_entry(raw: bytes) -> Entry:
    try:
        entry: Entry = _decoder.decode(raw)
    # The parser can raise these errors besides MsgspecError.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise DamagedState(
            "the journal of groups and transactions has an invalid entry",
            detail=f"{error}; the entry begins with {raw[:80]!r}",
            hint="restore the data directory from a backup; the broker does not start, because it would lose offsets",
        ) from error
    return entry
