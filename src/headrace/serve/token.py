"""Positions as opaque texts: what a write gives back, and every read; ``after=`` takes either.

A token says of some topics of the log, each by its name and id, how far their partitions must be in what is read: the
offset behind the last record that counts. It is MessagePack in base64 for URLs; nobody need read it. Several tokens
with commas in between are one: all that they tell of together, for who wrote more than once.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import msgspec

from headrace.serve.errors import TokenOutdated, TokenUnfit
from headrace.views.position import Position

__all__ = ["Reach", "Token", "token_of"]

_CHARS_MAX = 32_000
_TOPICS_MAX = 100


class Reach(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic_id: str
    ends: dict[int, int]

    def and_also(self, other: Reach, topic: str) -> Reach:
        if other.topic_id != self.topic_id:
            raise TokenOutdated(
                f"after is of two topics {topic!r}: one was deleted, and there is another of that name now",
                hint="read with the newer token alone",
            )
        both = self.ends | other.ends
        return Reach(
            self.topic_id, {number: max(at, self.ends.get(number, 0)) for number, at in both.items()}
        )


class Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    topics: dict[str, Reach]
    """By their names in the log."""

    @classmethod
    def of(cls, topics: Mapping[str, Reach]) -> Token:
        return cls(1, dict(topics))

    @classmethod
    def told(cls, text: str) -> Token:
        if len(text) <= _CHARS_MAX:
            first, *more = [cls._one(part) for part in text.split(",")]
            topics = dict(first.topics)
            for token in more:
                for name, reach in token.topics.items():
                    topics[name] = topics[name].and_also(reach, name) if name in topics else reach
            if len(topics) <= _TOPICS_MAX:
                return cls.of(topics)
        raise TokenUnfit("after tells of too much", hint="leave out the tokens that do not matter any more")

    @classmethod
    def _one(cls, text: str) -> Token:
        if text:
            try:
                padded = text + "=" * (-len(text) % 4)
                found = _decoder.decode(base64.b64decode(padded, b"-_", validate=True))
            except (binascii.Error, msgspec.DecodeError, ValueError, RecursionError):
                pass
            else:
                if found.version == 1 and 0 < len(found.topics) <= _TOPICS_MAX:
                    return found
        raise TokenUnfit(
            "after is not a token", hint="take the token of the answer to a write, or of a position"
        )

    def tell(self) -> str:
        return base64.urlsafe_b64encode(_encoder.encode(self)).rstrip(b"=").decode()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Token)


def token_of(position: Position) -> Token:
    """What is read with it shows no less than the position does."""
    return Token.of({position.topic: Reach(position.topic_id, position.offsets)})
