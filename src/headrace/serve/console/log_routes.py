"""Topics of the log, declared by the app or not: what there is, their records, finding some, and writing one."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headrace.client.reading import read
from headrace.serve.console.new_record import new_record
from headrace.serve.console.own_topics import whose_topic
from headrace.serve.console.record_json import record_json
from headrace.serve.console.search import Ask, search
from headrace.serve.console.search_body import SearchBody, ranges_of, read_search
from headrace.serve.console.topic_detail import ends_of, topic_detail
from headrace.serve.errors import NotThere, TopicDerived
from headrace.serve.parameter import integer, text
from headrace.serve.route import Answer, Body, Call, Receive, Route, Told, json_answer
from headrace.serve.scope import OPERATIONS, READ_TOPIC, WRITE_TOPIC
from headrace.serve.work import LOG
from headrace.serve.writes.written import Written

__all__ = ["LOG_ROUTES"]

NDJSON = "application/x-ndjson"
_PART_BYTES_MAX = 64 * 1024
_SEARCH_S = 600.0
_NO_BUFFER = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}


async def list_log_topics(call: Call) -> Answer:
    served = call.served
    found = await served.work.run(served.console.topics.all, served.limits.read_s, LOG)
    kinds = {one.name: one.kind for one in served.topics.all}
    progress = {one.progress_topic: "progress" for one in served.app.flows}
    return json_answer(
        {"topics": [{**one.told(), "kind": kinds.get(one.name) or progress.get(one.name)} for one in found]}
    )


async def describe_log_topic(call: Call) -> Answer:
    served, name = call.served, call.names["topic"]
    known = next((one for one in served.topics.all if one.name == name), None)

    def look() -> dict[str, object]:
        found = served.console.topics.one(name)
        groups = served.console.groups.reading(name)
        return {
            **topic_detail(served.cluster, found, served.clock.now_ms()),
            **ends_of(served.app, name, groups),
            "kind": known.kind if known else None,
            "writable": known.is_ours if known else not whose_topic(name),
            "declared": known is not None,
        }

    return json_answer(await served.work.run(look, served.limits.read_s, LOG))


async def read_record(call: Call) -> Answer:
    served, topic = call.served, call.names["topic"]
    number, offset = call.asked.get("partition", 0), call.asked.get("offset", 0)

    def look() -> dict[str, object]:
        served.cluster.expect_topic(topic)
        starts, ends = served.cluster.starts(topic), served.cluster.ends(topic)
        if number in ends and starts[number] <= offset < ends[number]:
            for message in read(served.cluster, topic, {number: (offset, offset + 1)}):
                return {"topic": topic, "record": record_json(message)}
        held = f"it holds {starts[number]} to {ends[number]}" if number in ends else f"there are {len(ends)}"
        raise NotThere(
            f"partition {number} of topic {topic[:100]!r} has no record at offset {offset}",
            hint=f"{held}; ends of transactions, and what was compacted away, are no records",
        )

    return json_answer(await served.work.run(look, served.limits.read_s, LOG))


async def search_topic(call: Call) -> Answer:
    served, topic = call.served, call.names["topic"]
    asked = read_search(call.body)
    limits = served.limits

    def prepare() -> Ask:
        served.cluster.expect_topic(topic)
        ranges = ranges_of(served.cluster, topic, asked)
        return _ask(topic, asked, ranges, limits.answer_bytes_max, limits.read_s)

    ask = await served.work.run(prepare, limits.read_s, LOG)
    if not ask.where:
        found = await served.work.run(
            lambda: b"".join(search(served.cluster, ask, served.clock)), limits.read_s, LOG
        )
        return Answer(found, media_type=NDJSON, headers=_NO_BUFFER)
    process = await served.console.searches.begin(ask, call.caller.token_id)

    def stream(receive: Receive) -> AsyncGenerator[bytes]:
        return served.console.searches.lines(process, receive, call.request_id)

    return Answer(b"", media_type=NDJSON, headers=_NO_BUFFER, stream=stream)


def _ask(
    topic: str, asked: SearchBody, ranges: dict[int, tuple[int, int]], bytes_max: int, read_s: float
) -> Ask:
    where = asked.where.strip()
    return Ask(
        topic,
        ranges,
        asked.newest_first,
        asked.limit,
        bytes_max,
        _PART_BYTES_MAX,
        # Without an expression it is as many records as were asked for, and read where they are answered.
        _SEARCH_S if where else read_s / 2,
        where,
    )


async def write_record(call: Call) -> Answer:
    served, topic = call.served, call.names["topic"]
    if any(one.name == topic for one in served.topics.all):
        raise TopicDerived(
            f"topic {topic!r} is declared by the app, and what is written to it must fit",
            hint=f"write it by POST /v1/topics/{topic}/records, if it is not derived",
        )
    if whose := whose_topic(topic):
        raise TopicDerived(f"topic {topic[:100]!r} is written by {whose} alone", hint="write another one")

    def write() -> Written:
        info = served.cluster.expect_topic(topic)
        record = new_record(call.body, info.partitions)
        return served.plain_writer().write(topic, info.id, [record])

    written = await served.work.run(write, served.limits.write_s, LOG)
    return json_answer(written.told())


_TOPIC = text("topic", "The name of a topic, as the log has it.", chars_max=249, where="path")

LOG_ROUTES = (
    Route(
        *("GET", "/v1/log/topics", OPERATIONS, list_log_topics, "List all topics of the log"),
        about="With partitions, records, bytes, what they keep, and records per second since they were last asked for.",
        answers={200: Told("The topics.", "LogTopics")},
        problems=(503, 504),
    ),
    Route(
        *("GET", "/v1/log/topics/{topic}", OPERATIONS, describe_log_topic, "Describe a topic of the log"),
        about="Its configs and where each comes from, its partitions, how long a record stays, who is at either end.",
        parameters=(_TOPIC,),
        answers={200: Told("The topic.", "LogTopic")},
        problems=(404, 503, 504),
    ),
    Route(
        *("GET", "/v1/log/topics/{topic}/record", READ_TOPIC, read_record, "Read one record"),
        about="Key, value and headers as text, or in base64 where they are none, whole.",
        named="topic",
        parameters=(
            _TOPIC,
            integer("partition", "The partition.", 0, 2**31 - 1, 0),
            integer("offset", "The offset.", 0, 2**63 - 1, 0),
        ),
        answers={200: Told("The record.", "LogRecord")},
        problems=(404, 503, 504),
    ),
    Route(
        *("POST", "/v1/log/topics/{topic}/search", READ_TOPIC, search_topic, "Search a topic"),
        about="All of it, or between two offsets or times, newest or oldest first; where is an expression in CEL over"
        " key, value, text, headers, time, partition, offset and size, and without it every record is one. The answer"
        " is lines of JSON: progress, record, and at last end, or problem.",
        named="topic",
        parameters=(_TOPIC,),
        body=Body("SearchBody", "What to look for, and where."),
        answers={200: Told("Lines of JSON.", media_type=NDJSON)},
        problems=(404, 413, 415, 429, 503, 504),
    ),
    Route(
        *("POST", "/v1/log/topics/{topic}/records", WRITE_TOPIC, write_record, "Write one record as it is"),
        about="To a topic that the app does not declare; what is declared is written by /v1/topics/{topic}/records."
        " Topics that lie beside flows, views and apps (.progress, .late, .dead, .alerts, .g1) are refused, of any"
        " app. Writing to Spring's dead letters (.DLT, -dlt) needs the scope for the topic that they came from, too.",
        named="topic",
        parameters=(_TOPIC,),
        body=Body("RawRecord", "The record."),
        answers={200: Told("Where it is.", "Written")},
        problems=(404, 409, 413, 415, 503, 504),
    ),
)
