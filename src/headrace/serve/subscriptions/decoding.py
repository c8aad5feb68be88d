"""Records of a view's topic as changes of its rows: what its follower makes of them, and nothing that it would not.

Values that do not fit are dead letters of the follower's, which writes them; here they are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Message

from headrace.model.errors import ValueDoesNotFit
from headrace.model.store import Postgres
from headrace.model.view import View
from headrace.serve.subscriptions.step import Change
from headrace.views.position import Shape
from headrace.views.redis.row_text import RowText
from headrace.views.rows import Row, RowDecoder
from headrace.views.store import Refusals

__all__ = ["Decoding", "key_shape"]


class Decoding:
    """For one thread at a time; ``apart`` gives another."""

    def __init__(self, view: View, shape: Shape, topic_key: tuple[str, ...]) -> None:
        self._made_of = (view, shape, topic_key)
        self._decoder = RowDecoder(shape, topic_key)
        self._refusals = _refusals_of(view, shape)
        self._text = RowText(shape)
        self._key_text = RowText(key_shape(shape))

    def apart(self) -> Decoding:
        return Decoding(*self._made_of)

    def changes(self, messages: Iterable[Message]) -> list[Change]:
        found: list[Change] = []
        for message in messages:
            value = message.value()
            partition, offset = message.partition() or 0, message.offset() or 0
            try:
                if value is None:
                    key = self._decoder.key(message.key())
                    if self._refusals is not None:
                        self._refusals.key(key)
                    found.append(Change(self._key_text.value(key), key, None, None, partition, offset))
                else:
                    row = self._decoder.row(value)
                    if self._refusals is not None:
                        self._refusals.row(row)
                    key = self._text.key_of(row)
                    text = self._text.value(row)
                    found.append(Change(self._key_text.value(key), key, text, row, partition, offset))
            except ValueDoesNotFit:
                continue
        return found

    def written(self, row: Row) -> tuple[bytes, bytes]:
        """Its key and itself, as messages have them."""
        return self._key_text.value(self._text.key_of(row)), self._text.value(row)


def key_shape(shape: Shape) -> Shape:
    """Of rows that have the columns of the key only."""
    return Shape(tuple(shape.fields[at] for at in shape.key_places), shape.key)


def _refusals_of(view: View, shape: Shape) -> Refusals | None:
    """What the view's store cannot hold, though the schema allows it."""
    if not isinstance(view.store, Postgres):
        return None
    from headrace.views.postgres.columns import refusals

    return refusals(shape)
