"""How far a view has come, and of what: kept in the store, in the transaction of the rows that it tells of.

For a topic that a flow writes, a position is the end of one of the flow's batches: generation, batch number, and the
offset behind its last row in each partition. For any other topic it is an offset per partition. For a topic that a
flow writes in real time it is that too, with the last batch that is in it whole, and the source of the last row from
each partition of the input, by which repeats are told.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import msgspec

from headrace.model.kinds import Field
from headrace.model.schema_json import fields_from_json, fields_to_json
from headrace.model.source import Sources

__all__ = ["NO_BATCH", "Position", "Shape", "Standing"]

NO_BATCH = -1
_SHAPES_KEPT = 256


class Position(msgspec.Struct, frozen=True):
    topic: str
    """As the log names it."""
    topic_id: str
    offsets: dict[int, int]
    """Per partition, what comes next. A partition that is not in it has not been read."""
    generation: int = 0
    """Of the flow that writes the topic; 0 where none does."""
    batch: int = NO_BATCH
    """The last one that is in it whole."""
    progress_id: str = ""
    progress_offset: int = 0
    """Where the record of the next batch is looked for."""
    removed_below: dict[int, int] = {}
    """Below which offsets the log had removed expired deletions already when this was read, where it tells."""
    complete_ms: int = 0
    """When the log was last read to its end, or begun with from its start: no deletion older than this was missed."""
    stored_ms: int = 0
    dead: int = 0
    """Dead letters on the way here."""
    sources: Sources = {}
    """Of a flow that writes in real time: how far its input is in it (``headrace.model.source``)."""


@dataclass(frozen=True)
class Shape:
    """The columns of a view, and which of them are its key. Every question needs it, and what follows from it: so that
    is worked out once, and one shape is made of one text.
    """

    fields: tuple[Field, ...]
    key: tuple[str, ...]

    @classmethod
    def told(cls, text: str) -> Shape:
        return _told(text)

    def tell(self) -> str:
        """As JSON; equal for equal shapes, wherever they come from."""
        return self._text

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _text(self) -> str:
        return msgspec.json.encode({"key": self.key, "fields": fields_to_json(self.fields)}).decode()

    @cached_property
    def _hash(self) -> int:
        return hash((self.fields, self.key))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.fields)

    @cached_property
    def key_places(self) -> tuple[int, ...]:
        return tuple(self.names.index(name) for name in self.key)


@lru_cache(_SHAPES_KEPT)
def _told(text: str) -> Shape:
    told = msgspec.json.decode(text)
    return Shape(fields_from_json(told["fields"]), tuple(told["key"]))


@dataclass(frozen=True, slots=True)
class Standing:
    """What a store has of a view."""

    shape: Shape
    position: Position
    wish: int
    """Which request to rebuild it has fulfilled; see ``Store.ask_rebuild``."""
    reason: str
    """Why it was built."""
    fault: str = ""
    """Why its rows cannot be those that the position tells of, where a store can find that out."""
    searched: tuple[str, ...] = ()
    """Of a full-text index: the columns whose words can be searched for."""
