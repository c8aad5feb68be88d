"""What a search asks for, and which offsets of which partitions that is."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.client.cluster import Cluster
from headrace.serve.console.log_topics import first_since
from headrace.serve.console.where import WHERE_CHARS_MAX
from headrace.serve.errors import NotThere, RequestUnfit

__all__ = ["LIMIT_MAX", "SearchBody", "ranges_of", "read_search"]

LIMIT_MAX = 10_000
_PARTITIONS_MAX = 10_000
_Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Edge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a search begins or ends: one of these."""

    offset: _Offset | None = None
    time_ms: Annotated[int, Meta(ge=0, le=253_402_300_799_999)] | None = None
    offsets: dict[str, _Offset] | None = None
    """By partition."""


class SearchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    where: Annotated[str, Meta(max_length=WHERE_CHARS_MAX)] = ""
    begin: Edge | None = msgspec.field(default=None, name="from")
    end: Edge | None = msgspec.field(default=None, name="to")
    partitions: Annotated[list[_Number], Meta(max_length=_PARTITIONS_MAX)] | None = None
    newest_first: bool = True
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 50


_decode = msgspec.json.Decoder(SearchBody).decode


def read_search(body: bytes) -> SearchBody:
    try:
        found = _decode(body)
        found.where.encode()
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestUnfit(f"the body: {error}", hint="see SearchBody in GET /docs") from None
    for name, edge in (("from", found.begin), ("to", found.end)):
        if (
            edge is not None
            and sum(one is not None for one in (edge.offset, edge.time_ms, edge.offsets)) != 1
        ):
            raise RequestUnfit(f"{name} must have one of offset, time_ms and offsets")
    return found


def ranges_of(cluster: Cluster, topic: str, asked: SearchBody) -> dict[int, tuple[int, int]]:
    """What is there of what was asked for; committed records only."""
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    numbers = sorted(ends) if asked.partitions is None else sorted(set(asked.partitions))
    absent = next((one for one in numbers if one not in ends), None)
    if absent is not None:
        raise NotThere(
            f"topic {topic!r} has no partition {absent}", hint=f"it has {len(ends)}, counted from 0"
        )
    begin = _offsets(cluster, topic, asked.begin, starts, ends)
    end = _offsets(cluster, topic, asked.end, ends, ends)
    return {one: (max(starts[one], begin[one]), min(ends[one], end[one])) for one in numbers}


def _offsets(
    cluster: Cluster, topic: str, edge: Edge | None, otherwise: dict[int, int], ends: dict[int, int]
) -> dict[int, int]:
    if edge is None:
        return otherwise
    if edge.offset is not None:
        return dict.fromkeys(ends, edge.offset)
    if edge.time_ms is not None:
        found = first_since(cluster, [(topic, one) for one in ends], edge.time_ms)
        return {one: at if (at := found.get((topic, one), -1)) >= 0 else end for one, end in ends.items()}
    given = edge.offsets or {}
    return {one: given.get(str(one), otherwise[one]) for one in ends}
