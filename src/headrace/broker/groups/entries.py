"""What the coordinator writes to its journal: one JSON object per entry, told apart by ``kind``.

    group         a group as of its last complete rebalance, or emptied: generation, protocol, leader, members
                  with their subscriptions and assignments. Replaces the entry before it.
    group-gone    the group and all its offsets are deleted
    offsets       what one OffsetCommit stored: it is there whole or not at all
    offsets-gone  single offsets deleted or expired
    topic-gone    the topic was deleted, and with it every group's offsets for it

After a crash the fold of what was synced is the state: a group that was in the middle of a rebalance is back
at its last complete one, and its members find out by their next heartbeat.

Bytes are base64. Times are milliseconds since 1970 by the clock that the broker trusts.
"""

from __future__ import annotations

from typing import Annotated

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


Entry = GroupEntry | GroupGone | OffsetsEntry | OffsetsGone | TopicGone

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
            "an entry of the groups' journal does not read as one",
            detail=f"{error}; the entry begins {raw[:80]!r}",
            hint="restore the data directory from a backup; offsets are never dropped to get started",
        ) from error
    return entry
