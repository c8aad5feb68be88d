"""The position of a view in its topic, the schema of the view, and the state, which contains both.

A store writes the position in the same transaction as the rows. The content of a position depends on the topic:

- If a flow writes the topic in batches, the position is the end of a batch: its generation, its number, and the offset
  after its last row in each partition.
- If a flow writes the topic in real time, the position is an offset per partition. It also has the last batch that is
  completely in the view, and the source of the last row from each input partition, which identifies repeated rows.
- For other topics, the position is an offset per partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import msgspec

from headrace.model.kinds import Field
from headrace.model.progress import Sources
from headrace.model.schema import fields_from_json, fields_to_json

__all__ = ["NO_BATCH", "Position", "ViewSchema", "ViewState"]

NO_BATCH = -1
_SCHEMAS_CACHED = 256


class Position(msgspec.Struct, frozen=True):
    topic: str
    """The topic's name in the log."""
    topic_id: str
    offsets: dict[int, int]
    """The next offset per partition. A missing partition has not been read."""
    generation: int = 0
    """The generation of the flow that writes the topic; 0 if no flow writes it."""
    batch: int = NO_BATCH
    """The last batch that is completely in the view."""
    progress_id: str = ""
    progress_offset: int = 0
    """The offset in the progress topic from which the follower searches for the next batch."""
    removed_below: dict[int, int] = {}
    """Per partition, the offset below which the log had already removed expired tombstones, if the log reports it."""
    complete_ms: int = 0
    """When the follower last read the log to its end, or started from its beginning. At that time the view had missed
    no deletion.
    """
    stored_ms: int = 0
    dead: int = 0
    """The number of dead letters so far."""
    sources: Sources = {}
    """If a flow writes the topic in real time: how far the view has applied the flow's input
    (``headrace.model.progress``).
    """


@dataclass(frozen=True)
class ViewSchema:
    """The columns of a view, and which of them are its key.

    Every query needs the schema and its derived values. So these are computed once, and equal texts are parsed to the
    same object.
    """

    fields: tuple[Field, ...]
    key: tuple[str, ...]
    upcast: str = ""
    """The digest of the upcasters that converted the rows. After a change of their code, the view is rebuilt."""

    @classmethod
    def parse(cls, text: str) -> ViewSchema:
        return _parse(text)

    def to_json(self) -> str:
        """Return the schema as JSON. The text is the same for equal schemas."""
        return self._text

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _text(self) -> str:
        document = {"key": self.key, "fields": fields_to_json(self.fields)}
        return msgspec.json.encode(document | ({"upcast": self.upcast} if self.upcast else {})).decode()

    @cached_property
    def _hash(self) -> int:
        return hash((self.fields, self.key, self.upcast))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @cached_property
    def key_indexes(self) -> tuple[int, ...]:
        return tuple(self.names.index(name) for name in self.key)


@lru_cache(_SCHEMAS_CACHED)
def _parse(text: str) -> ViewSchema:
    decoded = msgspec.json.decode(text)
    return ViewSchema(fields_from_json(decoded["fields"]), tuple(decoded["key"]), decoded.get("upcast", ""))


@dataclass(frozen=True, slots=True)
class ViewState:
    """The state of one part of a view in its store."""

    schema: ViewSchema
    position: Position
    rebuild_requests: int
    """How many rebuilds had been requested when the part was built (``StoreWriter.request_rebuild``)."""
    reason: str
    """Why the part was built."""
    fault: str = ""
    """Why the rows do not match the position, if the store detects this; otherwise empty."""
    searched: tuple[str, ...] = ()
    """The columns that a full-text index covers."""
