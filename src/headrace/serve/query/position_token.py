"""Position tokens: opaque texts with which a client reads its own writes.

Every write and every read returns a token, and the parameter ``after=`` accepts both. A token has the name
and id of one or more log topics. For each topic it has the end offset per partition that a read must reflect. Its
encoding is MessagePack in URL-safe base64. A client that wrote more than once can join several tokens by commas; a
read then reflects all of them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.clock import time_json
from headrace.serve.errors import InvalidPositionToken, PositionTokenOutdated
from headrace.stores.position import Position, ViewSchema

__all__ = [
    "PositionDocument",
    "PositionToken",
    "TopicPosition",
    "from_opaque",
    "merged_token",
    "position_digest",
    "position_document",
    "to_opaque",
    "token_of",
]

_CHARS_MAX = 32_000
_TOPICS_MAX = 100


def to_opaque(raw: bytes) -> str:
    """Encode a token or cursor as URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def from_opaque(text: str) -> bytes:
    """Decode URL-safe base64 without padding. Raise ValueError if the text is not valid."""
    return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)


class TopicPosition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic_id: str
    ends: dict[int, int]
    """The offset after the last record, by partition."""

    def merge(self, other: TopicPosition, topic: str) -> TopicPosition:
        if other.topic_id != self.topic_id:
            raise PositionTokenOutdated(
                f"the parameter 'after' has two tokens for topic {topic!r}, which was deleted and created again"
                " in between",
                hint="use only the newer token",
            )
        ends = self.ends | other.ends
        return TopicPosition(
            self.topic_id, {number: max(end, self.ends.get(number, 0)) for number, end in ends.items()}
        )


class PositionToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    topics: dict[str, TopicPosition]
    """The positions, by the topic's name in the log."""

    @classmethod
    def of(cls, topics: Mapping[str, TopicPosition]) -> PositionToken:
        return cls(1, dict(topics))

    @classmethod
    def parse(cls, text: str) -> PositionToken:
        if len(text) <= _CHARS_MAX:
            first, *others = [cls._parse_one(part) for part in text.split(",")]
            topics = dict(first.topics)
            for token in others:
                for name, position in token.topics.items():
                    topics[name] = topics[name].merge(position, name) if name in topics else position
            if len(topics) <= _TOPICS_MAX:
                return cls.of(topics)
        raise InvalidPositionToken(
            f"the parameter 'after' is too large: at most {_CHARS_MAX} characters and {_TOPICS_MAX} topics",
            hint="omit the tokens that you no longer need",
        )

    @classmethod
    def _parse_one(cls, text: str) -> PositionToken:
        if text:
            try:
                token = _decoder.decode(from_opaque(text))
            except (msgspec.DecodeError, ValueError, RecursionError):
                pass
            else:
                if token.version == 1 and 0 < len(token.topics) <= _TOPICS_MAX:
                    return token
        raise InvalidPositionToken(
            "the parameter 'after' is not a position token",
            hint="use the token from the response to a write, or from the position of a read",
        )

    def encode(self) -> str:
        return to_opaque(_encoder.encode(self))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PositionToken)


def token_of(position: Position) -> PositionToken:
    """Reads with this token reflect at least this position."""
    return PositionToken.of({position.topic: TopicPosition(position.topic_id, position.offsets)})


def merged_token(positions: Iterable[Position]) -> PositionToken:
    """Return a token that demands all of these positions. If a topic occurs twice, its last position counts."""
    topics: dict[str, TopicPosition] = {}
    for position in positions:
        topics |= token_of(position).topics
    return PositionToken.of(topics)


class PositionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The response reflects all records of the topic before these offsets, and no later records."""

    token: Annotated[
        str, Meta(description="Value for after. Reads with this token reflect at least this position.")
    ]
    topic: str
    generation: int | UnsetType = UNSET
    batch: int | UnsetType = UNSET
    offsets: Annotated[dict[int, int], Meta(description="The offset after the last record, by partition.")]
    stored: (
        Annotated[
            str,
            Meta(
                description="When the store reached the position; absent if no store was read.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET


def position_document(position: Position, *, stored: bool = True) -> PositionDocument:
    return PositionDocument(
        token=token_of(position).encode(),
        topic=position.topic,
        generation=position.generation or UNSET,
        batch=position.batch if position.generation else UNSET,
        offsets=dict(sorted(position.offsets.items())),
        stored=time_json(position.stored_ms) if stored else UNSET,
    )


def position_digest(position: Position, schema: ViewSchema) -> str:
    """Return a hash of position and schema. If two hashes are equal, the view has the same rows at both positions."""
    identity = msgspec.json.encode(
        [
            *(position.topic, position.topic_id, position.generation, position.batch, position.progress_id),
            sorted(position.offsets.items()),
            schema.to_json(),
        ]
    )
    return hashlib.sha256(identity).hexdigest()[:24]
