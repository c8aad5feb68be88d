"""Consumer groups: what there is, one of them, and moving it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.serve.errors import RequestUnfit
from headrace.serve.parameter import text
from headrace.serve.route import Answer, Body, Call, Route, Told, json_answer
from headrace.serve.scope import ADMIN, OPERATIONS
from headrace.serve.work import LOG

__all__ = ["GROUP_ROUTES"]


class Seek(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: Annotated[str, Meta(min_length=1, max_length=100)]
    topic: Annotated[str, Meta(min_length=1, max_length=249)] | None = None
    partitions: Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(max_length=10_000)] | None = (
        None
    )
    dry_run: bool = True


_decode = msgspec.json.Decoder(Seek).decode


async def list_groups(call: Call) -> Answer:
    served = call.served
    found = await served.work.run(served.console.groups.all, served.limits.read_s, LOG)
    return json_answer({"groups": found})


async def describe_group(call: Call) -> Answer:
    served, name = call.served, call.names["group"]
    return json_answer(
        await served.work.run(lambda: served.console.groups.one(name), served.limits.read_s, LOG)
    )


async def seek_group(call: Call) -> Answer:
    served, name = call.served, call.names["group"]
    try:
        asked = _decode(call.body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestUnfit(f"the body: {error}") from None
    groups = served.console.groups

    def move() -> dict[str, Any]:
        moves, busy = groups.moves(name, asked.to, asked.topic, asked.partitions)
        if not asked.dry_run:
            groups.seek(name, moves, busy)
        return {
            "group": name,
            "dry_run": asked.dry_run,
            "moves": [{**one.row(), "start": one.bounds.start, "end": one.bounds.end} for one in moves],
            "at_work": busy,
        }

    return json_answer(await served.work.run(move, served.limits.write_s, LOG))


_GROUP = text("group", "The name of a consumer group.", chars_max=249, where="path")

GROUP_ROUTES = (
    Route(
        *("GET", "/v1/log/groups", OPERATIONS, list_groups, "List consumer groups"),
        about="With their states, members, and how far they are behind in records, bytes and seconds.",
        answers={200: Told("The groups.", "LogGroups")},
        problems=(503, 504),
    ),
    Route(
        *("GET", "/v1/log/groups/{group:path}", OPERATIONS, describe_group, "Describe a consumer group"),
        parameters=(_GROUP,),
        answers={200: Told("The group.", "LogGroup")},
        problems=(404, 503, 504),
    ),
    Route(
        *("POST", "/v1/log/groups/{group:path}/seek", ADMIN, seek_group, "Move a consumer group"),
        about="To a place: start, end, an offset, +10 after the start, -10 before the end, or @ and a time. Unless"
        " dry_run is false it is only told what would change. Members must be stopped.",
        parameters=(_GROUP,),
        body=Body(
            "Seek", "Where to, and which partitions; without a topic, all that the group has committed."
        ),
        answers={200: Told("What changed, or would.", "Moves")},
        problems=(404, 409, 413, 415, 503, 504),
    ),
)
