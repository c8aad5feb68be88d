"""A reader of the log: a flow, a view or a consumer group, with its position.

A flow's position comes from its progress topic, a group's position from its committed offsets, and a view's position
from its store or its follower. The lag of all readers is measured in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from headrace.client.progress import Progress, reached
from headrace.model.progress import Batch, Generation

__all__ = ["Partition", "Reader", "ViewPosition", "flow_reader", "view_reader"]

Partition = tuple[str, int]
"""Topic name in the log, and partition number."""


@dataclass(frozen=True, slots=True)
class Reader:
    what: Literal["flow", "view", "served", "group"]
    """``view`` is a view's follower. ``served`` is the old part of a view, which serves queries during a rebuild."""
    name: str
    state: str
    offsets: Mapping[Partition, int] = field(default_factory=dict)
    """By partition, the next offset to read."""
    topics: tuple[str, ...] = ()
    """Topics of which the reader reads every partition, including partitions that are not in ``offsets``."""
    has_started: bool = True
    """Whether the reader has started. If so, its position in a partition that is not in ``offsets`` is 0. If not, its
    position is the current start of the partition.
    """
    read_committed: bool = True
    """Whether the reader reads only committed records."""
    lag_known: bool = True
    """False if the lag is unknown; ``state`` gives the reason."""
    at_end: bool = False
    """Whether the reader has read all records. Transaction markers can still follow its offset."""
    generation: int | None = None
    batch: int | None = None
    batches: int | None = None
    """Batches that the flow has committed and the view has not applied."""
    dead: int | None = None
    """The number of open dead letters; None if unknown."""

    @property
    def log_topics(self) -> set[str]:
        """The topics that determine the reader's lag."""
        return {*self.topics, *(topic for topic, _ in self.offsets)} if self.lag_known else set()


class StoredPosition(Protocol):
    """The position type of stores and followers. This package does not import them."""

    @property
    def topic(self) -> str: ...
    @property
    def offsets(self) -> Mapping[int, int]: ...
    @property
    def generation(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def dead(self) -> int: ...
    @property
    def stored_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ViewPosition:
    """A view's position from its store or its follower. ``topic`` is empty if the view is not built."""

    state: str
    topic: str = ""
    offsets: Mapping[int, int] = field(default_factory=dict)
    generation: int = 0
    batch: int = -1
    dead: int = 0
    stored_ms: int = 0

    @classmethod
    def of(cls, state: str, position: StoredPosition | None) -> ViewPosition:
        if position is None:
            return cls(state)
        return cls(
            state,
            position.topic,
            position.offsets,
            position.generation,
            position.batch,
            position.dead,
            position.stored_ms,
        )


def flow_reader(name: str, generation: Generation, last: Batch | None) -> Reader:
    offsets: dict[Partition, int] = {}
    topics: list[str] = []
    for source in generation.inputs:
        # Every batch reads tables to their end, so tables do not add to the flow's lag.
        if source.kind == "events":
            topics.append(source.log)
            offsets |= {(source.log, number): offset for number, offset in reached(source, last).items()}
    return Reader(
        "flow",
        name,
        "begun",
        offsets,
        tuple(topics),
        generation=generation.generation,
        batch=last.batch if last else None,
    )


def view_reader(name: str, position: ViewPosition, newest: Progress | None) -> Reader:
    """Create the reader of a view. ``newest`` is the progress of the flow that writes the view's topic, if any. The
    generation of a view is 0 if no flow writes its topic.
    """
    offsets = {(position.topic, number): offset for number, offset in position.offsets.items()}
    reader = Reader("view", name, position.state, offsets, (position.topic,))
    if not position.generation:
        return reader
    flow_view_reader = replace(reader, generation=position.generation, batch=position.batch)
    if newest is None or newest.generation.generation != position.generation:
        current = "none" if newest is None else newest.generation.generation
        return replace(
            flow_view_reader, lag_known=False, state=f"{position.state}; the flow's generation is {current}"
        )
    batches = max(0, (newest.last.batch if newest.last else -1) - position.batch)
    # After the last batch, the topic has only a transaction marker. A real-time flow writes rows before it commits
    # their batch, so its topic can have more rows.
    at_end = batches == 0 and newest.generation.latency != "realtime"
    return replace(flow_view_reader, batches=batches, at_end=at_end)
