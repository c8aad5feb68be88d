"""Where the next page begins, as an opaque text: the question, the place of the last row in its order, and the position
of the first page.

Every page is read at the position that the view has then, and says which that is. So rows that change between two pages
may be seen as they were or as they are, and one whose place in the order moves may be seen twice or not at all; pages
of one position have every row once. ``same=true`` refuses a page at another position than the first.

A cursor holds nothing that a caller could not have asked for: it is read as strictly as the question itself.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace

import msgspec

from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Field
from headrace.model.schema import Schema
from headrace.model.values import Codec
from headrace.serve.errors import CursorUnfit
from headrace.views.position import Shape
from headrace.views.question import By
from headrace.views.redis.row_text import RowText
from headrace.views.rows import Row, Value, plain

__all__ = ["Cursor", "place_of", "place_text"]

_CHARS_MAX = 16_000
_SKIP_MAX = 1_000_000


class Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    view: str
    at: str
    """Tells the position of the first page apart from others."""
    after: str = ""
    """The values that the last row is sorted by, as JSON."""
    skip: int = 0
    filter: str | None = None
    sort: str | None = None
    prefix: str | None = None
    begin: str | None = None
    end: str | None = None
    words: str | None = None

    @classmethod
    def told(cls, text: str, view: str) -> Cursor:
        if len(text) <= _CHARS_MAX:
            try:
                padded = text + "=" * (-len(text) % 4)
                found = _decoder.decode(base64.b64decode(padded, b"-_", validate=True))
            except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
                pass
            else:
                if found.view == view and 0 <= found.skip < _SKIP_MAX and found._is_of_one_kind():
                    return found
        raise CursorUnfit("cursor is not one of this view", hint="follow the link named next, as it is")

    def _is_of_one_kind(self) -> bool:
        """Words have an order of their own."""
        if self.words is None:
            return not self.skip
        return bool(self.words.strip()) and self.sort is None and not self.after

    def tell(self) -> str:
        return base64.urlsafe_b64encode(_encoder.encode(self)).rstrip(b"=").decode()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Cursor)


def place_text(shape: Shape, order: tuple[By, ...], row: Row) -> str:
    fields = _ordering(shape, order)
    values = tuple(row[shape.names.index(one.name)] for one in fields)
    return RowText(Shape(fields, (fields[0].name,))).value(values).decode()


def place_of(shape: Shape, order: tuple[By, ...], text: str) -> list[Value]:
    fields = _ordering(shape, order)
    try:
        found = Codec(Schema("cursor", fields)).decode(text.encode())
    except (ValueDoesNotFit, UnicodeEncodeError):
        raise CursorUnfit(
            "cursor does not fit the view as it is now", hint="begin again with the first page"
        ) from None
    return [
        None if one is None else plain(field.kind)(one)
        for field, one in zip(fields, found.values(), strict=True)
    ]


def _ordering(shape: Shape, order: tuple[By, ...]) -> tuple[Field, ...]:
    known = {one.name: one for one in shape.fields}
    return tuple(replace(known[one.column], optional=True, default=None) for one in order)
