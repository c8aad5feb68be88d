"""What is noted of a view in Redis, beside its rows, as of one moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.views.errors import StoreDamaged
from headrace.views.position import Position, Shape, Standing
from headrace.views.redis.keys import Keys
from headrace.views.redis.scripts import look
from headrace.views.redis.server import Command
from headrace.views.store import Owner, Part

__all__ = ["Notes", "noted", "position_text", "reads"]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Position).decode


@dataclass(frozen=True, slots=True)
class Notes:
    fields: dict[str, str]
    found: dict[Part, int]
    """How many rows there are."""

    @property
    def owner(self) -> Owner | None:
        if "epoch" not in self.fields:
            return None
        with _as_written():
            return Owner(int(self.fields["epoch"]), self.fields["owner"])

    @property
    def format(self) -> int:
        return int(self.fields.get("format", 0))

    @property
    def wish(self) -> int:
        return int(self.fields.get("wish", 0))

    def position(self, part: Part) -> Position | None:
        text = self.fields.get(part)
        with _as_written():
            return None if text is None else _decode(text)

    def standing(self, part: Part) -> Standing | None:
        position = self.position(part)
        if position is None:
            return None
        with _as_written():
            shape, wish, reason = (self.fields[f"{part}.{name}"] for name in ("shape", "wish", "reason"))
            return Standing(Shape.told(shape), position, int(wish), reason, self.fault(part))

    def fault(self, part: Part) -> str:
        """Why the rows are not those that were written; empty if nothing is known against them."""
        left = int(self.fields.get(f"{part}.rows", 0))
        if left == self.found[part]:
            return ""
        return f"{self.found[part]} rows are there, and {left} were written: somebody has changed or evicted them"

    def moved(self, to: Part, of: Part) -> list[str]:
        """All that is noted of one part, as of the other: names and values in turn."""
        names = [name for name in self.fields if name == of or name.startswith(f"{of}.")]
        return [text for name in names for text in (name.replace(of, to, 1), self.fields[name])]


@contextlib.contextmanager
def _as_written() -> Iterator[None]:
    try:
        yield
    except (KeyError, ValueError, TypeError, msgspec.DecodeError) as error:
        raise StoreDamaged(
            f"what is noted of the view does not read back: {error}",
            hint="somebody has changed it; delete the view's keys, and it is built again",
        ) from error


def reads(keys: Keys, *more: tuple[str, str]) -> Command:
    """What to ask for ``noted``, and whatever else must be of the same moment."""
    return look([("HGETALL", keys.known), ("HLEN", keys.serving), ("HLEN", keys.building), *more])


def noted(answers: Sequence[Any]) -> Notes:
    told, serving, building, *_ = answers
    with _as_written():
        texts = [one.decode() for one in told]
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    return Notes(fields, {Part.SERVING: serving, Part.BUILDING: building})


def position_text(position: Position) -> bytes:
    return _encode(position)
