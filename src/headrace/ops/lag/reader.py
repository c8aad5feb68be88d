"""Something that reads the log: a flow, a view or a consumer group, and where it is.

Who knows where a reader is differs: a flow's progress is in the log, a group's commits with the brokers, a view's
position in its store or with its follower. From here on all of them are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from headrace.client.flow_lag import reached
from headrace.client.progress_log import Progress
from headrace.model.progress import Batch, Generation

__all__ = ["Partition", "Reader", "ViewPlace", "flow_reader", "view_reader"]

Partition = tuple[str, int]
"""Topic, as the log names it, and number."""


@dataclass(frozen=True, slots=True)
class Reader:
    what: Literal["flow", "view", "group"]
    name: str
    state: str
    at: Mapping[Partition, int] = field(default_factory=dict)
    """What it reads next."""
    topics: tuple[str, ...] = ()
    """Of which it reads every partition, also those that ``at`` does not have."""
    begun: bool = True
    """Whether it reads a partition that is not in ``at`` from offset 0; otherwise from whatever comes first now."""
    committed: bool = True
    """Whether it reads committed records only."""
    known: bool = True
    """Whether its lag can be said; ``state`` says why not."""
    at_end: bool = False
    """Whether it is known to have everything, though offsets may lie behind it that are no records."""
    generation: int | None = None
    batch: int | None = None
    batches: int | None = None
    """That the flow has committed and the view does not have yet."""
    dead: int | None = None

    @property
    def log_topics(self) -> set[str]:
        """All that must be looked at for its lag."""
        return {*self.topics, *(topic for topic, _ in self.at)} if self.known else set()


@dataclass(frozen=True, slots=True)
class ViewPlace:
    """How far a view has come, as its store or its follower says; without a topic it has not begun."""

    state: str
    topic: str = ""
    offsets: Mapping[int, int] = field(default_factory=dict)
    generation: int = 0
    batch: int = -1
    dead: int = 0


def flow_reader(name: str, generation: Generation, last: Batch | None) -> Reader:
    at: dict[Partition, int] = {}
    topics: list[str] = []
    for one in generation.inputs:
        # Tables are read to their end at every batch; how far is no sign of how late the flow is.
        if one.kind == "events":
            topics.append(one.log)
            at |= {(one.log, number): offset for number, offset in reached(one, last).items()}
    return Reader(
        "flow",
        name,
        "begun",
        at,
        tuple(topics),
        generation=generation.generation,
        batch=last.batch if last else None,
        dead=last.totals.dead + last.totals.table_dead if last else 0,
    )


def view_reader(name: str, place: ViewPlace, newest: Progress | None) -> Reader:
    """``newest`` is how far the flow is that writes its topic, where one does: then its generation is not 0."""
    at = {(place.topic, number): offset for number, offset in place.offsets.items()}
    plain = Reader("view", name, place.state, at, (place.topic,), dead=place.dead)
    if not place.generation:
        return plain
    of_flow = replace(plain, generation=place.generation, batch=place.batch)
    if newest is None or newest.generation.generation != place.generation:
        there = "none" if newest is None else newest.generation.generation
        return replace(of_flow, known=False, state=f"{place.state}; the flow's generation is {there}")
    batches = max(0, (newest.last.batch if newest.last else -1) - place.batch)
    # Behind the last batch there is nothing but the end of its transaction, which is no record. In real time rows are
    # there before their batch is.
    at_end = batches == 0 and newest.generation.latency != "realtime"
    return replace(of_flow, batches=batches, at_end=at_end)
