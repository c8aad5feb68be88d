"""The routes that read topics: list, describe, read a page of records."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.model.codec.scalar_text import time_from
from headrace.serve.errors import InvalidCursor, InvalidRequest
from headrace.serve.http.context import ServeContext
from headrace.serve.http.route import (
    Feature,
    Parameter,
    Request,
    Response,
    ResponseDoc,
    Route,
    integer,
    json_response,
    text,
)
from headrace.serve.http.tokens import READ_TOPIC, WRITE_TOPIC
from headrace.serve.query.position_token import PositionDocument
from headrace.serve.query.record_page import RecordCursor, RecordDocument, RecordPage, offsets_at, read_page
from headrace.serve.query.topics import TopicDetail, Topics, TopicSummary

__all__ = ["TOPIC", "TopicQueries"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time_ms(value: str) -> int:
    try:
        return (time_from(value) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise ValueError("a time with a UTC offset, such as 2026-01-31T12:00:00Z") from None


TOPIC = text("topic", "The name of a topic.", chars_max=249, where="path")
_RECORD_PARAMETERS = (
    TOPIC,
    integer("partition", "Read only this partition.", 0, 1_000_000),
    integer("offset", "Start at this offset of the partition.", 0, 2**63 - 1),
    Parameter(
        "time",
        "Start at the first record at or after this time.",
        {"type": "string", "format": "date-time"},
        _time_ms,
        example="2026-01-31T12:00:00Z",
    ),
    integer("limit", "Maximum number of records.", 1, 100_000, 100),
    text(
        "cursor",
        "Start of the page. Take it from the URL in the field next of the previous response.",
        chars_max=16_000,
    ),
)


class TopicList(msgspec.Struct, frozen=True):
    app: str
    topics: list[TopicSummary]


class RecordsDocument(msgspec.Struct, frozen=True):
    topic: str
    position: PositionDocument
    records: list[RecordDocument]
    at_end: Annotated[bool, Meta(description="True if the page reached the end of the topic.")]
    next: Annotated[str, Meta(description="The URL of the next page, which later records can fill.")]


class TopicQueries(Feature):
    def __init__(self, context: ServeContext, topics: Topics) -> None:
        self._context = context
        self._topics = topics

    async def list_topics(self, request: Request) -> Response:
        may = request.caller.may
        topics = [
            topic.summary()
            for topic in self._topics.all
            if may(READ_TOPIC, topic.name) or (topic.is_writable and may(WRITE_TOPIC, topic.name))
        ]
        return json_response(TopicList(self._context.app.name, topics))

    async def describe_topic(self, request: Request) -> Response:
        topic = self._topics.get(request.path_values["topic"])
        return json_response(await self._context.run_on_log(lambda: self._topics.describe(topic)))

    async def read_records(self, request: Request) -> Response:
        parameters, limits = request.parameters, self._context.limits
        topic = self._topics.get(request.path_values["topic"])
        if "offset" in parameters and "partition" not in parameters:
            raise InvalidRequest("the parameter offset also needs the parameter partition")
        starts = {"cursor", "offset", "time"} & set(parameters)
        if len(starts) > 1 or {"cursor", "partition"} <= set(parameters):
            raise InvalidRequest(
                "use only one of cursor, offset and time, and do not use partition with cursor"
            )
        cursor = RecordCursor.parse(parameters["cursor"]) if "cursor" in parameters else None
        limit = min(parameters.get("limit", limits.rows_default), limits.rows_max)

        def read() -> tuple[str, RecordPage]:
            info = self._topics.get_in_log(topic)
            if cursor is not None and cursor.topic_id != info.id:
                raise InvalidCursor(
                    f"topic {topic.name!r} was deleted and created again after the cursor was issued",
                    hint="start again without a cursor",
                )
            begin = cursor.offsets if cursor else self._start(parameters, info.name)
            cluster = self._context.cluster
            return info.name, read_page(cluster, info.name, info.id, begin, limit, limits.answer_bytes_max)

        log_topic, page = await self._context.run_on_log(read)
        path = f"/v1/topics/{urllib.parse.quote(topic.name, safe='')}/records"
        next_url = f"{path}?{urllib.parse.urlencode({'cursor': page.next.encode(), 'limit': limit})}"
        position = PositionDocument(
            token=page.token, topic=log_topic, offsets=dict(sorted(page.next.offsets.items()))
        )
        headers = {"Headrace-Position": page.token, "Link": f'<{next_url}>; rel="next"'}
        document = RecordsDocument(topic.name, position, page.records, page.at_end, next_url)
        return json_response(document, headers=headers)

    def _start(self, parameters: Mapping[str, Any], log_topic: str) -> dict[int, int]:
        """Return the first offset to read, by partition."""
        cluster = self._context.cluster
        if "offset" in parameters:
            return {parameters["partition"]: parameters["offset"]}
        if "time" in parameters:
            starts = offsets_at(cluster, log_topic, parameters["time"])
        else:
            starts = cluster.starts(log_topic)
        if "partition" not in parameters:
            return starts
        if parameters["partition"] not in starts:
            raise InvalidRequest(
                f"topic {log_topic!r} has {len(starts)} partitions", hint="partitions are numbered from 0"
            )
        return {parameters["partition"]: starts[parameters["partition"]]}

    routes = (
        Route(
            *("GET", "/v1/topics", READ_TOPIC, list_topics, "List the topics"),
            description="The topics that the token may read or write.",
            is_filtered=True,
            responses={200: ResponseDoc("The topics.", TopicList)},
        ),
        Route(
            *("GET", "/v1/topics/{topic}", READ_TOPIC, describe_topic, "Describe a topic"),
            permission_name="topic",
            parameters=(TOPIC,),
            responses={200: ResponseDoc("The topic.", TopicDetail)},
            error_statuses=(404, 503, 504),
        ),
        Route(
            *("GET", "/v1/topics/{topic}/records", READ_TOPIC, read_records, "Read a topic's records"),
            description="Returns committed records from the start, an offset or a time. The field next of every"
            " response is the URL of the next page, which later records can fill.",
            permission_name="topic",
            parameters=_RECORD_PARAMETERS,
            responses={200: ResponseDoc("A page of records.", RecordsDocument)},
            error_statuses=(404, 410, 503, 504),
        ),
    )
