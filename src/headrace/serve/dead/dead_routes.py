"""Dead letters: which topics have some, what they are, and writing them back."""

from __future__ import annotations

import asyncio
import urllib.parse
from typing import Annotated, Any, Literal

import msgspec

from headrace.ops.dead.dead_topic import look_at_dead, named_dead
from headrace.ops.dead.judge import Judge
from headrace.ops.dead.letters import newest_letters
from headrace.ops.dead.replay import NAMED_MAX, Wanted
from headrace.serve.dead.letter_json import letter_json
from headrace.serve.dead.replays import replay_json
from headrace.serve.errors import CursorUnfit, RequestUnfit
from headrace.serve.parameter import integer, text
from headrace.serve.record_page import RecordCursor
from headrace.serve.route import Answer, Body, Call, Route, Told, json_answer
from headrace.serve.scope import ADMIN, OPERATIONS, READ_TOPIC
from headrace.serve.work import LOG

__all__ = ["DEAD_ROUTES"]

_LIMIT_MAX = 200
_SOON_S = 2.0
"""A replay that is done by then is answered with its result."""
_POLL_S = 0.02


class _At(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    letters: Annotated[list[_At], msgspec.Meta(min_length=1, max_length=NAMED_MAX)] | Literal["all"]
    dry_run: bool = False
    again: bool = False
    per_s: Annotated[float, msgspec.Meta(ge=0.1, le=100_000)] | None = None

    def wanted(self) -> Wanted:
        places = None if self.letters == "all" else [(one.partition, one.offset) for one in self.letters]
        return Wanted(places, self.dry_run, self.again, self.per_s)


_decoder = msgspec.json.Decoder(_Asked)


async def list_dead(call: Call) -> Answer:
    served = call.served

    def look() -> list[dict[str, Any]]:
        topics, seen = look_at_dead(served.cluster, served.app)
        marks = served.replays.marks()
        marks.catch_up()
        replayed = marks.counts()
        told = []
        for one in topics:
            letters, exact = served.letter_counts.count(one.name, seen)
            sizes = [size for place, size in seen.sizes.items() if place[0] == one.name]
            told.append(
                {
                    "topic": one.name,
                    "kind": one.kind,
                    "of": one.of,
                    "letters": letters,
                    "exact": exact,
                    "replayed": replayed.get(one.name, 0),
                    "bytes": sum(sizes) if sizes else None,
                }
            )
        return told

    found = await served.work.run(look, served.limits.read_s, LOG)
    return json_answer({"app": served.app.name, "topics": found})


async def read_letters(call: Call) -> Answer:
    served = call.served
    topic = named_dead(served.app, call.names["topic"])
    cursor = RecordCursor.told(call.asked["cursor"]) if "cursor" in call.asked else None
    limit = call.asked.get("limit", 50)

    def look() -> dict[str, Any]:
        info = served.cluster.topic(topic.name)
        if cursor is not None and (info is None or cursor.topic_id != info.id):
            raise CursorUnfit(
                f"cursor is of another topic than {topic.name!r} is now", hint="begin again without it"
            )
        if info is None:
            return {"topic": topic.name, "letters": [], "at_end": True, "next": None}
        before = cursor.offsets if cursor else None
        page = newest_letters(served.cluster, topic.name, limit, before, served.limits.answer_bytes_max)
        marks, judge = served.replays.marks(), Judge(served.cluster, served.app)
        marks.catch_up()
        path = f"/v1/dead/{urllib.parse.quote(topic.name, safe='')}/letters"
        following = RecordCursor(info.id, dict(page.before)).tell()
        query = urllib.parse.urlencode({"cursor": following, "limit": limit})
        return {
            "topic": topic.name,
            "letters": [letter_json(one, marks.find(one.id), judge.why_not(one)) for one in page.letters],
            "at_end": page.at_end,
            "next": None if page.at_end else f"{path}?{query}",
        }

    return json_answer(await served.work.run(look, served.limits.read_s, LOG))


async def begin_replay(call: Call) -> Answer:
    served = call.served
    topic = named_dead(served.app, call.names["topic"])
    try:
        asked = _decoder.decode(call.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestUnfit(
            f"the body does not say which letters: {error}",
            hint='as in {"letters": "all", "dry_run": true} or {"letters": [{"partition": 0, "offset": 7}]}',
        ) from None
    replay = await served.work.run(
        lambda: served.replays.begin(topic, asked.wanted()), served.limits.read_s, LOG
    )
    soon = call.began + _SOON_S
    while not replay.ended.is_set() and served.clock.steady() < soon:
        await asyncio.sleep(_POLL_S)
    return json_answer(replay_json(topic.name, replay), status=200 if replay.ended.is_set() else 202)


async def tell_replay(call: Call) -> Answer:
    topic = named_dead(call.served.app, call.names["topic"])
    return json_answer(replay_json(topic.name, call.served.replays.last(topic.name)))


async def cancel_replay(call: Call) -> Answer:
    topic = named_dead(call.served.app, call.names["topic"])
    replay = call.served.replays.last(topic.name)
    if replay is not None:
        replay.cancel()
    return json_answer(replay_json(topic.name, replay))


_TOPIC = text("topic", "The name of a topic of dead letters.", chars_max=249, where="path")

DEAD_ROUTES = (
    Route(
        *("GET", "/v1/dead", OPERATIONS, list_dead, "List the topics of dead letters"),
        about="One of each flow and view, and those that Spring made for a topic of the app.",
        answers={200: Told("The topics, and how many letters each has.", "DeadTopics")},
        problems=(503, 504),
    ),
    Route(
        *("GET", "/v1/dead/{topic}/letters", READ_TOPIC, read_letters, "Read dead letters"),
        about="The newest first, with the reason, where each came from, and whether it was written back.",
        named="topic",
        parameters=(
            _TOPIC,
            integer("limit", "At most so many letters.", 1, _LIMIT_MAX, 50),
            text("cursor", "Where the next page begins, as the link named next has it.", chars_max=16_000),
        ),
        answers={200: Told("A page of letters.", "Letters")},
        problems=(404, 503, 504),
    ),
    Route(
        *("POST", "/v1/dead/{topic}/replay", ADMIN, begin_replay, "Write dead letters back"),
        about="Each record goes to the topic that it came from, as it was, for all who read there; with headers that"
        " say what it is a replay of. Each is written once, whatever is killed meanwhile: one that was written back"
        " before is left as it is, unless again is true. With dry_run nothing is written, and the answer says what"
        " would be. One replay runs at a time.",
        parameters=(_TOPIC,),
        body=Body("ReplayWanted", "Which letters, and how."),
        answers={
            200: Told("What became of them.", "Replay"),
            202: Told("It goes on; ask for it with GET.", "Replay"),
        },
        problems=(404, 408, 409, 413, 415, 503, 504),
    ),
    Route(
        *("GET", "/v1/dead/{topic}/replay", OPERATIONS, tell_replay, "How the last replay of a topic goes"),
        parameters=(_TOPIC,),
        answers={200: Told("Its state, its progress, and its results.", "Replay")},
        problems=(404,),
    ),
    Route(
        *("POST", "/v1/dead/{topic}/cancel", ADMIN, cancel_replay, "Call a replay off"),
        about="What was written stays written and noted; the same replay again goes on behind it.",
        parameters=(_TOPIC,),
        answers={200: Told("Its state; it ends in a moment.", "Replay")},
        problems=(404,),
    ),
)
