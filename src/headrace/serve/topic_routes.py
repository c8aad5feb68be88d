"""Topics: what there is, their records, and writing some."""

from __future__ import annotations

import asyncio
import hashlib
import re
import urllib.parse
from datetime import UTC, datetime, timedelta

from headrace.model.texts import time_from
from headrace.serve.errors import CursorUnfit, OutcomeUnknown, RequestUnfit
from headrace.serve.parameter import Parameter, integer, text
from headrace.serve.record_page import RecordCursor, RecordPage, offsets_at, page_of
from headrace.serve.route import Answer, Body, Call, Route, Told, json_answer
from headrace.serve.scope import READ_TOPIC, WRITE_TOPIC
from headrace.serve.work import LOG
from headrace.serve.writes.incoming import Incoming, incoming, traced
from headrace.serve.writes.lane import Outcome, Request
from headrace.serve.writes.written import Written

__all__ = ["TOPIC_ROUTES"]

_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GRACE_S = 2.0


async def list_topics(call: Call) -> Answer:
    found = [
        one.told()
        for one in call.served.topics.all
        if call.caller.may(READ_TOPIC, one.name) or (one.is_ours and call.caller.may(WRITE_TOPIC, one.name))
    ]
    return json_answer({"app": call.served.app.name, "topics": found})


async def describe_topic(call: Call) -> Answer:
    topics = call.served.topics
    topic = topics.named(call.names["topic"])
    return json_answer(
        await call.served.work.run(lambda: topics.described(topic), call.served.limits.read_s, LOG)
    )


async def read_records(call: Call) -> Answer:
    served, asked = call.served, call.asked
    topic = served.topics.named(call.names["topic"])
    if "offset" in asked and "partition" not in asked:
        raise RequestUnfit("offset is of one partition: name it with partition")
    if len({"cursor", "offset", "time"} & set(asked)) > 1 or {"cursor", "partition"} <= set(asked):
        raise RequestUnfit("cursor, offset and time each say where to begin: give one of them")
    cursor = RecordCursor.told(asked["cursor"]) if "cursor" in asked else None
    limit = min(asked.get("limit", served.limits.rows_default), served.limits.rows_max)

    def look() -> tuple[str, RecordPage]:
        info = served.topics.expect_in_log(topic)
        if cursor is not None and cursor.topic_id != info.id:
            raise CursorUnfit(
                f"cursor is of another topic than {topic.name!r} is now", hint="begin again without it"
            )
        begin = cursor.offsets if cursor else _begin(call, info.name)
        return info.name, page_of(
            served.cluster, info.name, info.id, begin, limit, served.limits.answer_bytes_max
        )

    log_topic, page = await served.work.run(look, served.limits.read_s, LOG)
    path = f"/v1/topics/{urllib.parse.quote(topic.name, safe='')}/records"
    following = f"{path}?{urllib.parse.urlencode({'cursor': page.next.tell(), 'limit': limit})}"
    told = {
        "topic": topic.name,
        "position": {
            "token": page.token,
            "topic": log_topic,
            "offsets": {str(number): at for number, at in sorted(page.next.offsets.items())},
        },
        "records": page.records,
        "at_end": page.at_end,
        "next": following,
    }
    headers = {"Headrace-Position": page.token, "Link": f'<{following}>; rel="next"'}
    return json_answer(told, headers=headers)


def _begin(call: Call, log_topic: str) -> dict[int, int]:
    cluster, asked = call.served.cluster, call.asked
    if "offset" in asked:
        return {asked["partition"]: asked["offset"]}
    found = offsets_at(cluster, log_topic, asked["time"]) if "time" in asked else cluster.starts(log_topic)
    if "partition" not in asked:
        return found
    if asked["partition"] not in found:
        raise RequestUnfit(f"topic {log_topic!r} has {len(found)} partitions", hint="they are counted from 0")
    return {asked["partition"]: found[asked["partition"]]}


async def write_records(call: Call) -> Answer:
    served = call.served
    topic = served.topics.writable(call.names["topic"])
    key = call.headers.get("idempotency-key")
    if key is not None and _KEY.fullmatch(key) is None:
        raise RequestUnfit("Idempotency-Key must be 1 to 200 visible ASCII characters")
    limits = served.limits

    def prepare() -> tuple[str, list[Incoming]]:
        info = served.topics.expect_in_log(served.topics.named(topic.name))
        return info.id, incoming(topic, call.body, limits.records_max)

    topic_id, records = await served.work.run(prepare, limits.read_s, LOG)
    told: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic.name,
        "messaging.batch.message_count": len(records),
    }
    with served.traces.step(f"send {topic.name}", told, "producer"):
        records = traced(records, served.traces.carried())
        if key is None:
            return _written(await _plainly(call, topic.name, topic_id, records), repeated=False)
        outcome = await _once(call, topic.name, topic_id, records, key)
        return _written(outcome.written, repeated=outcome.repeated)


async def _plainly(call: Call, topic: str, topic_id: str, records: list[Incoming]) -> Written:
    served = call.served
    return await served.work.run(
        lambda: served.plain_writer().write(topic, topic_id, records), served.limits.write_s, LOG
    )


async def _once(call: Call, topic: str, topic_id: str, records: list[Incoming], key: str) -> Outcome:
    served, limits = call.served, call.served.limits
    request = Request(
        *(call.caller.token_id, key, topic, topic_id, records),
        hashlib.sha256(call.body).hexdigest(),
        served.clock.steady() + limits.write_s,
    )
    served.lane().submit(request)
    try:
        async with asyncio.timeout(limits.write_s + _GRACE_S):
            return await asyncio.wrap_future(request.outcome)
    except TimeoutError:
        raise OutcomeUnknown(
            "the log has not said in time whether it took the records",
            hint="send the same request with the same Idempotency-Key again: it is carried out once",
        ) from None


def _written(written: Written, *, repeated: bool) -> Answer:
    headers = {"Headrace-Token": written.token, "Headrace-Position": written.token}
    if repeated:
        headers["Idempotency-Replayed"] = "true"
    return json_answer(written.told(), headers=headers)


def _time_ms(given: str) -> int:
    try:
        return (time_from(given) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise ValueError("a time with its offset, as 2026-01-31T12:00:00Z") from None


_TOPIC = text("topic", "The name of a topic.", chars_max=249, where="path")
_RECORD_PARAMETERS = (
    _TOPIC,
    integer("partition", "Of one partition only.", 0, 1_000_000),
    integer("offset", "From this offset on, of the partition that is named.", 0, 2**63 - 1),
    Parameter(
        "time",
        "From the first record that is not older.",
        {"type": "string", "format": "date-time"},
        _time_ms,
        example="2026-01-31T12:00:00Z",
    ),
    integer("limit", "At most so many records.", 1, 100_000, 100),
    text("cursor", "Where the next page begins, as the link named next has it.", chars_max=16_000),
)

TOPIC_ROUTES = (
    Route(
        *("GET", "/v1/topics", READ_TOPIC, list_topics, "List the topics"),
        about="Those that the token may read or write.",
        listed=True,
        answers={200: Told("The topics.", "TopicList")},
    ),
    Route(
        *("GET", "/v1/topics/{topic}", READ_TOPIC, describe_topic, "Describe a topic"),
        named="topic",
        parameters=(_TOPIC,),
        answers={200: Told("The topic.", "Topic")},
        problems=(404, 503, 504),
    ),
    Route(
        *("GET", "/v1/topics/{topic}/records", READ_TOPIC, read_records, "Read a topic's records"),
        about="Committed records only, from the first one that there is, from an offset, or from a time. next is always"
        " there: what comes later is found behind it.",
        named="topic",
        parameters=_RECORD_PARAMETERS,
        answers={200: Told("A page of records.", "Records")},
        problems=(404, 410, 503, 504),
    ),
    Route(
        *("POST", "/v1/topics/{topic}/records", WRITE_TOPIC, write_records, "Write records"),
        about="All records of a request fit, or none is written. With an Idempotency-Key they are written together and"
        " once: the same request again, also after a crash, is answered as it was the first time.",
        named="topic",
        parameters=(
            _TOPIC,
            text(
                "Idempotency-Key",
                "Chosen by the caller, one per request; kept for a week.",
                chars_max=200,
                where="header",
            ),
        ),
        body=Body("NewRecords", "A record, or several as records."),
        answers={200: Told("Where they are, and a token for reading them.", "Written")},
        problems=(404, 409, 413, 415, 422, 503, 504),
    ),
)
