"""The HTTP routes with which operators inspect the log: topics, single records, searches, and consumer groups."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from headrace.client.cluster import Cluster
from headrace.client.generations import is_progress_topic
from headrace.client.records import read
from headrace.model.declarations import Flow
from headrace.serve.console.documents import (
    GroupDetail,
    GroupList,
    LogRecord,
    LogTopicDetail,
    LogTopicList,
    LogTopicSummary,
    OffsetMoves,
    Seek,
)
from headrace.serve.console.groups import GroupService
from headrace.serve.console.record_json import RawRecord, new_record, record_json
from headrace.serve.console.search import SearchJob, search
from headrace.serve.console.search_processes import SearchProcesses
from headrace.serve.console.topic_detail import exclusive_writer, topic_detail, topic_users
from headrace.serve.console.topics import LogTopics, first_since
from headrace.serve.console.where import WHERE_CHARS_MAX
from headrace.serve.errors import InvalidRequest, NotFound, TopicNotWritable
from headrace.serve.http.context import ServeContext
from headrace.serve.http.executor import LOG
from headrace.serve.http.route import (
    Body,
    Feature,
    Receive,
    Request,
    Response,
    ResponseDoc,
    Route,
    integer,
    json_response,
    text,
)
from headrace.serve.http.tokens import ADMIN, OPERATIONS, READ_TOPIC, WRITE_TOPIC
from headrace.serve.query.topics import Topics
from headrace.serve.writes.plain_writer import PlainWriter
from headrace.serve.writes.records import WriteResult, WrittenDocument

__all__ = ["LIMIT_MAX", "Console", "SearchBody", "parse_search", "search_ranges"]

T = TypeVar("T")
_NDJSON = "application/x-ndjson"
_PART_BYTES_MAX = 64 * 1024
_SEARCH_S = 600.0
_NO_BUFFER = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
_TOPIC = text("topic", "The name of a topic in the log.", chars_max=249, where="path")
_GROUP = text("group", "The name of a consumer group.", chars_max=249, where="path")
_decode_seek = msgspec.json.Decoder(Seek).decode


LIMIT_MAX = 10_000
_PARTITIONS_MAX = 10_000
_Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]


def _kind(flows: Sequence[Flow], topic: str) -> str | None:
    return "progress" if any(is_progress_topic(flow, topic) for flow in flows) else None


class SearchBound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The start or end of a search. Exactly one field is set."""

    offset: _Offset | None = None
    time_ms: Annotated[int, Meta(ge=0, le=253_402_300_799_999)] | None = None
    offsets: dict[str, _Offset] | None = None
    """Offsets by partition."""


class SearchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    where: Annotated[str, Meta(max_length=WHERE_CHARS_MAX)] = ""
    begin: SearchBound | None = msgspec.field(default=None, name="from")
    end: SearchBound | None = msgspec.field(default=None, name="to")
    partitions: Annotated[list[_PartitionNumber], Meta(max_length=_PARTITIONS_MAX)] | None = None
    newest_first: bool = True
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 50


_decode = msgspec.json.Decoder(SearchBody).decode


class Console(Feature):
    """Create it in the server's event loop. ``topics`` are the topics that the app declares."""

    def __init__(
        self, context: ServeContext, topics: Topics, plain_writer: Callable[[], PlainWriter]
    ) -> None:
        self._context = context
        self._declared = topics
        self._plain_writer = plain_writer
        self._topics = LogTopics(context.cluster, context.clock)
        self._groups = GroupService(context.cluster, context.clock)
        self._searches = SearchProcesses(context.cluster, context.limits.token_share_percent)

    async def close(self) -> None:
        await self._searches.close()
        self._groups.close()

    # Topics and records

    async def list_log_topics(self, request: Request) -> Response:
        topics = await self._context.run_on_log(self._topics.all)
        kinds = {topic.name: topic.kind for topic in self._declared.all}
        flows = self._context.app.flows
        summaries = [
            LogTopicSummary(**topic.summary(), kind=kinds.get(topic.name) or _kind(flows, topic.name))
            for topic in topics
        ]
        return json_response(LogTopicList(summaries))

    async def describe_log_topic(self, request: Request) -> Response:
        context, name = self._context, request.path_values["topic"]
        declared = next((topic for topic in self._declared.all if topic.name == name), None)

        def describe() -> LogTopicDetail:
            topic = self._topics.topic(name)
            groups = self._groups.groups_reading(name)
            return LogTopicDetail(
                **topic_detail(context.cluster, topic, context.clock.now_ms()),
                **topic_users(context.app, name, groups),
                kind=declared.kind if declared else None,
                writable=declared.is_writable if declared else not exclusive_writer(name),
                declared=declared is not None,
            )

        return json_response(await context.run_on_log(describe))

    async def read_record(self, request: Request) -> Response:
        cluster, topic = self._context.cluster, request.path_values["topic"]
        number, offset = request.parameters.get("partition", 0), request.parameters.get("offset", 0)

        def read_one() -> LogRecord:
            cluster.expect_topic(topic)
            starts, ends = cluster.starts(topic), cluster.ends(topic)
            if number in ends and starts[number] <= offset < ends[number]:
                for message in read(cluster, topic, {number: (offset, offset + 1)}):
                    return LogRecord(topic, record_json(message))
            extent = (
                f"the partition has offsets from {starts[number]} up to, but not including, {ends[number]}"
                if number in ends
                else f"the topic has {len(ends)} partitions"
            )
            raise NotFound(
                f"partition {number} of topic {topic[:100]!r} has no record at offset {offset}",
                hint=f"{extent}; transaction markers and compacted records are not readable",
            )

        return json_response(await self._context.run_on_log(read_one))

    async def search_topic(self, request: Request) -> Response:
        context, topic = self._context, request.path_values["topic"]
        body, limits = parse_search(request.body), context.limits
        where = body.where.strip()

        def prepare() -> SearchJob:
            context.cluster.expect_topic(topic)
            return SearchJob(
                topic=topic,
                ranges=search_ranges(context.cluster, topic, body),
                newest_first=body.newest_first,
                limit=body.limit,
                bytes_max=limits.answer_bytes_max,
                part_bytes_max=_PART_BYTES_MAX,
                # Without an expression, the search reads only the records that it returns, and needs no process.
                time_s=_SEARCH_S if where else limits.read_s / 2,
                where=where,
            )

        job = await context.run_on_log(prepare)
        if not job.where:
            lines = await context.run_on_log(lambda: b"".join(search(context.cluster, job, context.clock)))
            return Response(lines, media_type=_NDJSON, headers=_NO_BUFFER)
        process = await self._searches.start(job, request.caller.token_id)

        def stream(receive: Receive) -> AsyncGenerator[bytes]:
            return self._searches.lines(process, receive, request.request_id)

        return Response(b"", media_type=_NDJSON, headers=_NO_BUFFER, stream=stream)

    async def write_record(self, request: Request) -> Response:
        context, topic = self._context, request.path_values["topic"]
        if any(declared.name == topic for declared in self._declared.all):
            raise TopicNotWritable(
                f"the app declares topic {topic!r}, so its records must match a schema",
                hint=f"use POST /v1/topics/{topic}/records; it accepts records unless a flow writes the topic",
            )
        if writer := exclusive_writer(topic):
            raise TopicNotWritable(
                f"only {writer} may write topic {topic[:100]!r}", hint="write to another topic"
            )

        def write() -> WriteResult:
            info = context.cluster.expect_topic(topic)
            record = new_record(request.body, info.partitions)
            return self._plain_writer().write(topic, info.id, [record])

        written = await context.executor.run(write, context.limits.write_s, LOG)
        return json_response(written.document())

    # Consumer groups

    async def list_groups(self, request: Request) -> Response:
        return json_response(GroupList(await self._context.run_on_log(self._groups.all)))

    async def describe_group(self, request: Request) -> Response:
        name = request.path_values["group"]
        detail: GroupDetail = await self._context.run_on_log(lambda: self._groups.describe(name))
        return json_response(detail)

    async def seek_group(self, request: Request) -> Response:
        context, name = self._context, request.path_values["group"]
        try:
            seek = _decode_seek(request.body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidRequest(f"invalid body: {error}") from None

        def move() -> OffsetMoves:
            moves, active = self._groups.moves(name, seek.to, seek.topic, seek.partitions)
            if not seek.dry_run:
                self._groups.seek(name, moves, active)
            rows = [{**move.row(), "start": move.bounds.start, "end": move.bounds.end} for move in moves]
            return OffsetMoves(name, seek.dry_run, rows, active)

        return json_response(await context.executor.run(move, context.limits.write_s, LOG))

    routes = (
        Route(
            *("GET", "/v1/log/topics", OPERATIONS, list_log_topics, "List all topics of the log"),
            description="Lists partitions, records, bytes, retention, and records per second since the last request.",
            responses={200: ResponseDoc("The topics.", LogTopicList)},
            error_statuses=(503, 504),
        ),
        Route(
            *("GET", "/v1/log/topics/{topic}", OPERATIONS, describe_log_topic, "Describe a topic of the log"),
            description="Returns the topic's configs and their sources, its partitions, how long it retains records,"
            " and its writers and readers.",
            parameters=(_TOPIC,),
            responses={200: ResponseDoc("The topic.", LogTopicDetail)},
            error_statuses=(404, 503, 504),
        ),
        Route(
            *("GET", "/v1/log/topics/{topic}/record", READ_TOPIC, read_record, "Read one record"),
            description="Returns the whole key, value and headers: as text if they are UTF-8, otherwise in base64.",
            permission_name="topic",
            parameters=(
                _TOPIC,
                integer("partition", "The partition.", 0, 2**31 - 1, 0),
                integer("offset", "The offset.", 0, 2**63 - 1, 0),
            ),
            responses={200: ResponseDoc("The record.", LogRecord)},
            error_statuses=(404, 503, 504),
        ),
        Route(
            *("POST", "/v1/log/topics/{topic}/search", READ_TOPIC, search_topic, "Search a topic"),
            description="Searches the whole topic, or the records between two offsets or times, newest or oldest first."
            " The field where is a CEL expression over key, value, text, headers, time, partition, offset and size. If"
            " it is empty, every record matches. Each line of the response is a JSON object with one field: progress or"
            " record; in the last line, end or problem.",
            permission_name="topic",
            parameters=(_TOPIC,),
            body=Body(SearchBody, "The expression, the offsets or times to search, and the limit."),
            responses={200: ResponseDoc("Lines of JSON.", media_type=_NDJSON)},
            error_statuses=(404, 413, 415, 429, 503, 504),
        ),
        Route(
            *("POST", "/v1/log/topics/{topic}/records", WRITE_TOPIC, write_record, "Write one raw record"),
            description="Writes to a topic that the app does not declare. For declared topics, use"
            " /v1/topics/{topic}/records. The server refuses topics that only a flow, a view or an app may write"
            " (.progress, .late, .dead, .alerts, .g1), also those of other apps. To write to Spring's dead-letter"
            " topics (.DLT, -dlt), the token also needs the scope for the original topic.",
            permission_name="topic",
            parameters=(_TOPIC,),
            body=Body(RawRecord, "The record."),
            responses={200: ResponseDoc("The record's partition and offset.", WrittenDocument)},
            error_statuses=(404, 409, 413, 415, 503, 504),
        ),
        Route(
            *("GET", "/v1/log/groups", OPERATIONS, list_groups, "List consumer groups"),
            description="Lists each group's state, members, and lag in records, bytes and seconds.",
            responses={200: ResponseDoc("The groups.", GroupList)},
            error_statuses=(503, 504),
        ),
        Route(
            *("GET", "/v1/log/groups/{group:path}", OPERATIONS, describe_group, "Describe a consumer group"),
            parameters=(_GROUP,),
            responses={200: ResponseDoc("The group.", GroupDetail)},
            error_statuses=(404, 503, 504),
        ),
        Route(
            *("POST", "/v1/log/groups/{group:path}/seek", ADMIN, seek_group, "Move a consumer group"),
            description="Moves the group's committed offsets to the target: start, end, an offset, +10 (after the"
            " start), -10 (before the end), or @ followed by a time. The request is a dry run unless dry_run is false."
            " Stop the group's members first.",
            parameters=(_GROUP,),
            body=Body(Seek, "The target and the partitions. Default: all partitions with committed offsets."),
            responses={200: ResponseDoc("The moves; only planned in a dry run.", OffsetMoves)},
            error_statuses=(404, 409, 413, 415, 503, 504),
        ),
    )


def parse_search(body: bytes) -> SearchBody:
    try:
        search = _decode(body)
        search.where.encode()
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"invalid body: {error}", hint="see SearchBody in GET /docs") from None
    for name, bound in (("from", search.begin), ("to", search.end)):
        if (
            bound is not None
            and sum(value is not None for value in (bound.offset, bound.time_ms, bound.offsets)) != 1
        ):
            raise InvalidRequest(f"{name} must have exactly one of offset, time_ms and offsets")
    return search


def search_ranges(cluster: Cluster, topic: str, search: SearchBody) -> dict[int, tuple[int, int]]:
    """Return the start and end offset to search in each partition. Includes only committed records."""
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    numbers = sorted(ends) if search.partitions is None else sorted(set(search.partitions))
    missing = next((number for number in numbers if number not in ends), None)
    if missing is not None:
        raise NotFound(
            f"topic {topic!r} has no partition {missing}",
            hint=f"the topic has {len(ends)} partitions, numbered from 0",
        )
    begin = _offsets(cluster, topic, search.begin, starts, ends)
    end = _offsets(cluster, topic, search.end, ends, ends)
    return {
        number: (max(starts[number], begin[number]), min(ends[number], end[number])) for number in numbers
    }


def _offsets(
    cluster: Cluster, topic: str, bound: SearchBound | None, default: dict[int, int], ends: dict[int, int]
) -> dict[int, int]:
    if bound is None:
        return default
    if bound.offset is not None:
        return dict.fromkeys(ends, bound.offset)
    if bound.time_ms is not None:
        first = first_since(cluster, [(topic, number) for number in ends], bound.time_ms)
        return {
            number: offset if (offset := first.get((topic, number), -1)) >= 0 else end
            for number, end in ends.items()
        }
    offsets = bound.offsets or {}
    return {number: offsets.get(str(number), default[number]) for number in ends}
