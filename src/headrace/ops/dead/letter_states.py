"""The topic of letter states, and the rules by which letters are settled.

*Replayed* and *dismissed* are facts that someone caused. Each is a ``StateRecord`` in the compacted topic
``headrace.replays.<app>``, with the letter's id as key. The last record of a key counts. The transaction that writes a
letter back also writes its state.

*Settled* is not written. It follows from other records of the log: the generations and positions of the flows, and the
build records of the views (``headrace.model.rejection``). So every process computes the same states, and a letter is
open again if an earlier generation serves again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import progress_of
from headrace.client.progress import Progress, reached
from headrace.model.declarations import Flow
from headrace.model.progress import Input
from headrace.model.rejection import BuildRecord
from headrace.ops.dead.letter import Origin, RecordId

__all__ = [
    "HandledRange",
    "ServingGeneration",
    "StateRecord",
    "flow_that_derives",
    "handled_ranges",
    "parse_state_record",
    "read_progress",
    "states_topic",
]

_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the last time that Python can write."""
_ALL_PARTITIONS = -1
_NO_END = 2**62


class StateRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    letter: RecordId
    origin: Origin | None = None
    at_ms: Annotated[int, Meta(ge=0, le=_MS_MAX)]
    job: str
    """The job that wrote the record. When the job resumes after an error, it does not handle the letter again."""
    state: Literal["replayed", "dismissed"] = "replayed"
    to: RecordId | None = None
    """The record that was written back."""
    corrected: bool = False
    """Whether another value was written than the letter has."""
    reason: str = ""
    """Why a person dismissed the letter."""


_decoder = msgspec.json.Decoder(StateRecord)


def states_topic(app: str) -> str:
    # The name is older than the states: the topic first had the replayed letters only.
    return f"headrace.replays.{app}"


def parse_state_record(value: bytes) -> StateRecord | None:
    """Return None if the value is not a state record."""
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class ServingGeneration(msgspec.Struct, frozen=True):
    """What serves now: the generation of a flow, or the build of a view."""

    dead_topic: str
    generation: int | None
    """The generation of the flow; None for a view."""
    since_ms: int = 0
    """Letters of earlier releases do not name their generation. Those written since this time belong to it."""
    since_offset: int = 0
    """The view's letters from this offset on are not older than the build."""


class HandledRange(msgspec.Struct, frozen=True):
    """The records of a topic that what serves now has processed or rejected: from ``start`` to ``end``."""

    dead_topic: str
    source: str
    source_id: str
    partition: int
    """-1 for all partitions."""
    start: int
    end: int


def read_progress(cluster: Cluster, app: App) -> dict[str, Progress]:
    """Return the progress of each flow that has started."""
    progress = ((flow.name, progress_of(cluster, flow)) for flow in app.flows)
    return {name: found for name, found in progress if found is not None}


def flow_that_derives(app: App, source: str) -> Flow | None:
    """Return the flow of the app that writes the topic of the log, in any generation. Its records can only be derived
    again, not written back.
    """
    for flow in app.flows:
        name = flow.writes.name
        if source == name or (source.startswith(f"{name}.g") and source[len(name) + 2 :].isdecimal()):
            return flow
    return None


def handled_ranges(
    app: App,
    progress: Mapping[str, Progress],
    builds: Mapping[str, tuple[int, BuildRecord]],
    sources: Mapping[str, Iterable[str]],
) -> tuple[list[ServingGeneration], list[HandledRange]]:
    """Return the serving generations and builds, and the records that these have handled.

    By dead-letter topic, ``builds`` has the record with which the serving build of a view began, and its offset;
    ``sources`` has the topics that the letters come from.
    """
    serving: list[ServingGeneration] = []
    ranges: list[HandledRange] = []
    for flow in app.flows:
        if (newest := progress.get(flow.name)) is not None:
            generation = newest.generation
            serving.append(ServingGeneration(flow.dead_topic, generation.generation, generation.started_ms))
            ranges += _flow_ranges(flow, newest)
    for dead_topic, (offset, record) in builds.items():
        serving.append(ServingGeneration(dead_topic, None, since_offset=offset))
        ranges += (
            HandledRange(dead_topic, record.topic, record.topic_id, number, start, _NO_END)
            for number, start in record.starts.items()
        )
    read = {(handled.dead_topic, handled.source) for handled in ranges}
    # The records of an earlier generation of an input are not in the log of the current one.
    ranges += (
        HandledRange(dead_topic, source, "", _ALL_PARTITIONS, 0, _NO_END)
        for dead_topic, names in sources.items()
        for source in names
        if (dead_topic, source) not in read and flow_that_derives(app, source) is not None
    )
    return serving, ranges


def _flow_ranges(flow: Flow, progress: Progress) -> Iterable[HandledRange]:
    for source in progress.generation.inputs:
        for number, end in _ends(source, progress).items():
            start = source.starts.get(str(number), 0)
            yield HandledRange(flow.dead_topic, source.log, source.topic_id, number, start, end)


def _ends(source: Input, progress: Progress) -> Mapping[int, int]:
    last = progress.last
    if source.kind == "events":
        return reached(source, last)
    return {int(number): end for number, end in (last.tables.get(source.log, {}) if last else {}).items()}
