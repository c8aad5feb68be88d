"""The routes of dead letters: list and read them, write them back, correct or dismiss them. One job runs at a time, in
its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import urllib.parse
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from headrace.model.rejection import LetterState
from headrace.ops.dead.dead_topic import DeadTopic, dead_topic_named, dead_topics, dead_topics_in_log
from headrace.ops.dead.letter_index import LetterIndex, index_path
from headrace.ops.dead.letter_job import JobRequest, LetterJob
from headrace.ops.dead.letters import letters_at
from headrace.ops.dead.replay_rules import ReplayRules
from headrace.ops.lag.log_snapshot import take_snapshot
from headrace.serve.dead.documents import (
    CorrectionWanted,
    DeadTopics,
    DismissalWanted,
    JobStatus,
    Letters,
    ReplayWanted,
    letter_document,
    topic_summary,
)
from headrace.serve.errors import InvalidCursor, InvalidRequest, ReplayInProgress, ShuttingDown
from headrace.serve.http.context import ServeContext
from headrace.serve.http.route import (
    Body,
    Feature,
    Request,
    Response,
    ResponseDoc,
    Route,
    enum,
    integer,
    json_response,
    text,
)
from headrace.serve.http.tokens import ADMIN, OPERATIONS, READ_TOPIC, Caller
from headrace.serve.monitor.monitor import Monitor
from headrace.serve.query.position_token import from_opaque, to_opaque

__all__ = ["DeadLetters", "LetterJobs"]

_LIMIT_MAX = 200
_READ_MAX = 20_000
"""How many new dead letters one request reads into the index."""
_SYNC_S = 2.0
"""If a job ends within this time, the response contains its result. Otherwise the response has status 202."""
_POLL_S = 0.02
_CURSOR_CHARS_MAX = 1_000

_TOPIC = text("topic", "The name of a dead-letter topic.", chars_max=249, where="path")


class _Wanted(Protocol):
    def job_request(self) -> JobRequest: ...


Wanted = TypeVar("Wanted", bound=_Wanted)


class LetterCursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last letter of a page. The id distinguishes the topic from a later topic with the same name."""

    topic_id: str
    at_ms: int
    partition: int
    offset: int

    @classmethod
    def parse(cls, raw: str) -> LetterCursor:
        if len(raw) <= _CURSOR_CHARS_MAX:
            with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
                return msgspec.msgpack.decode(from_opaque(raw), type=cls)
        raise InvalidCursor(
            "the cursor is not a cursor of a dead-letter topic",
            hint="use the URL in the field next of the previous response, unchanged",
        )

    def encode(self) -> str:
        return to_opaque(msgspec.msgpack.encode(self))


_JOB_RESPONSES = {
    200: ResponseDoc("The job has ended; its results.", JobStatus),
    202: ResponseDoc("The job is running; poll it with GET …/replay.", JobStatus),
}
_JOB_ERRORS = (404, 408, 409, 413, 415, 503, 504)


class DeadLetters(Feature):
    def __init__(self, context: ServeContext, monitor: Monitor) -> None:
        self._context = context
        self._monitor = monitor
        self._jobs = LetterJobs(context, lambda error: context.report("for dead letters", error))

    async def close(self) -> None:
        self._jobs.close()

    def _index(self) -> LetterIndex:
        """Return the index, after it has read at most ``_READ_MAX`` new letters."""
        index = self._jobs.index()
        index.catch_up(progress=self._monitor.progress(), records_max=_READ_MAX)
        return index

    async def list_dead(self, request: Request) -> Response:
        context = self._context

        def list_topics() -> DeadTopics:
            index = self._jobs.index()
            log = take_snapshot(context.cluster, index.topics)
            index.catch_up(log, self._monitor.progress(), records_max=_READ_MAX)
            counts, unread = index.counts(), index.unread(log)
            summaries = []
            for topic in dead_topics_in_log(context.app, log):
                sizes = [size for (name, _), size in log.sizes.items() if name == topic.name]
                size = sum(sizes) if sizes else None
                summaries.append(
                    topic_summary(topic, counts.get(topic.name, {}), unread.get(topic.name, 0), size)
                )
            return DeadTopics(context.app.name, summaries)

        return json_response(await context.run_on_log(list_topics))

    async def read_letters(self, request: Request) -> Response:
        topic = self._topic(request)
        cursor = LetterCursor.parse(request.parameters["cursor"]) if "cursor" in request.parameters else None
        limit, state = request.parameters.get("limit", 50), request.parameters.get("state", "")
        return json_response(
            await self._context.run_on_log(
                lambda: self._letters(topic.name, cursor, limit, state, request.caller)
            )
        )

    def _letters(
        self, topic: str, cursor: LetterCursor | None, limit: int, state: str, caller: Caller
    ) -> Letters:
        context = self._context
        info = context.cluster.topic(topic)
        if cursor is not None and (info is None or cursor.topic_id != info.id):
            raise InvalidCursor(
                f"the cursor belongs to an earlier topic named {topic!r}", hint="start again without a cursor"
            )
        if info is None:
            return Letters(topic, [], at_end=True, next=None)
        index = self._index()
        before = (cursor.at_ms, cursor.partition, cursor.offset) if cursor else None
        newest = index.newest(topic, limit + 1, [LetterState(state)] if state else [], before)
        page, total_bytes = newest[:1], newest[0].bytes if newest else 0
        for item in newest[1:limit]:
            total_bytes += item.bytes
            if total_bytes > context.limits.answer_bytes_max:
                break
            page.append(item)
        coordinates = [(item.partition, item.offset) for item in page]
        letters = {
            (letter.record_id.partition, letter.record_id.offset): letter
            for letter in letters_at(context.cluster, topic, coordinates)
        }
        rules = ReplayRules(context.cluster, context.app, context.future_us)
        owners = {dead.name: dead for dead in dead_topics(context.app) if caller.may(READ_TOPIC, dead.name)}
        documents = [
            letter_document(letter, found, rules.refusal(letter), owners)
            for letter in (letters[item] for item in coordinates)
            if (found := index.find(letter.id)) is not None
        ]
        if len(page) == len(newest):
            return Letters(topic, documents, at_end=True, next=None)
        last = page[-1]
        path = f"/v1/dead/{urllib.parse.quote(topic, safe='')}/letters"
        next_cursor = LetterCursor(info.id, last.at_ms, last.partition, last.offset).encode()
        query = {"cursor": next_cursor, "limit": limit, **({"state": state} if state else {})}
        return Letters(topic, documents, at_end=False, next=f"{path}?{urllib.parse.urlencode(query)}")

    async def begin_replay(self, request: Request) -> Response:
        hint = 'send {"letters": "all", "dry_run": true} or {"letters": [{"partition": 0, "offset": 7}]}'
        return await self._begin(request, ReplayWanted, hint)

    async def begin_dismissal(self, request: Request) -> Response:
        hint = 'send {"letters": [{"partition": 0, "offset": 7}], "reason": "a test"}'
        return await self._begin(request, DismissalWanted, hint)

    async def begin_correction(self, request: Request) -> Response:
        hint = 'send {"letter": {"partition": 0, "offset": 7}, "value": "…"}'
        return await self._begin(request, CorrectionWanted, hint)

    async def _begin(self, request: Request, wanted: type[Wanted], hint: str) -> Response:
        topic = self._topic(request)
        try:
            job_request = msgspec.json.decode(request.body, type=wanted).job_request()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not valid: {error}", hint=hint) from None
        job = await self._context.run_on_log(lambda: self._jobs.start(topic, job_request))
        deadline_s = request.started_s + _SYNC_S
        while not job.ended.is_set() and self._context.clock.steady() < deadline_s:
            await asyncio.sleep(_POLL_S)
        status = 200 if job.ended.is_set() else 202
        return json_response(JobStatus.of(topic.name, job), status=status)

    async def describe_replay(self, request: Request) -> Response:
        topic = self._topic(request).name
        return json_response(JobStatus.of(topic, self._jobs.last(topic)))

    async def cancel_replay(self, request: Request) -> Response:
        topic = self._topic(request).name
        job = self._jobs.last(topic)
        if job is not None:
            job.cancel()
        return json_response(JobStatus.of(topic, job))

    def _topic(self, request: Request) -> DeadTopic:
        return dead_topic_named(self._context.app, request.path_values["topic"])

    routes = (
        Route(
            *("GET", "/v1/dead", OPERATIONS, list_dead, "List the dead-letter topics"),
            description="Lists the dead-letter topic of each flow and view, and the dead-letter topics that Spring"
            " created for topics of the app, with the number of letters in each state.",
            responses={200: ResponseDoc("The topics, and how many letters each has.", DeadTopics)},
            error_statuses=(503, 504),
        ),
        Route(
            *("GET", "/v1/dead/{topic}/letters", READ_TOPIC, read_letters, "Read dead letters"),
            description="Returns the newest letters first. A letter is one rejected record, with its state, its origin"
            " and all rejections.",
            permission_name="topic",
            parameters=(
                _TOPIC,
                integer("limit", "Maximum number of letters.", 1, _LIMIT_MAX, 50),
                enum("state", "Return only letters in this state.", tuple(LetterState)),
                text(
                    "cursor",
                    "Start of the page. Take it from the URL in the field next of the previous response.",
                    chars_max=_CURSOR_CHARS_MAX,
                ),
            ),
            responses={200: ResponseDoc("A page of letters.", Letters)},
            error_statuses=(404, 503, 504),
        ),
        Route(
            *("POST", "/v1/dead/{topic}/replay", ADMIN, begin_replay, "Write dead letters back"),
            description="Writes each record unchanged to its original topic, with additional headers that name the"
            " letter. All consumers of that topic receive the record. Each letter is written exactly once, even across"
            " crashes. Letters that are not open are skipped unless the field force is true. With dry_run, the"
            " response states for each record what its readers would do with it, but none is written. One job runs at"
            " a time.",
            parameters=(_TOPIC,),
            body=Body(ReplayWanted, "The letters to write back, and options."),
            responses=_JOB_RESPONSES,
            error_statuses=_JOB_ERRORS,
        ),
        Route(
            *("POST", "/v1/dead/{topic}/correct", ADMIN, begin_correction, "Write a corrected value back"),
            description="Writes one record with another value, and with the key of this value, to its original topic."
            " The value must match the schema of the topic. The letter keeps the original value.",
            parameters=(_TOPIC,),
            body=Body(CorrectionWanted, "The letter, and its corrected value."),
            responses=_JOB_RESPONSES,
            error_statuses=_JOB_ERRORS,
        ),
        Route(
            *("POST", "/v1/dead/{topic}/dismiss", ADMIN, begin_dismissal, "Dismiss dead letters"),
            description="States that the records are not needed. Dismissed letters stay in the topic.",
            parameters=(_TOPIC,),
            body=Body(DismissalWanted, "The letters to dismiss, and the reason."),
            responses=_JOB_RESPONSES,
            error_statuses=_JOB_ERRORS,
        ),
        Route(
            *("GET", "/v1/dead/{topic}/replay", OPERATIONS, describe_replay, "Describe a topic's last job"),
            parameters=(_TOPIC,),
            responses={200: ResponseDoc("The job's state, progress and results.", JobStatus)},
            error_statuses=(404,),
        ),
        Route(
            *("POST", "/v1/dead/{topic}/cancel", ADMIN, cancel_replay, "Cancel a job"),
            description="Letters that were already handled stay handled. Starting the same job again continues after"
            " them.",
            parameters=(_TOPIC,),
            responses={200: ResponseDoc("The job's state. The job ends shortly afterwards.", JobStatus)},
            error_statuses=(404,),
        ),
    )


_CLOSE_S = 5.0


class LetterJobs:
    """Runs one job at a time, and stores the last job of each topic. Thread-safe."""

    def __init__(self, context: ServeContext, report: Callable[[BaseException], None]) -> None:
        self._context = context
        self._report = report
        self._lock = threading.Lock()
        self._index: LetterIndex | None = None
        self._current: LetterJob | None = None
        self._last: dict[str, LetterJob] = {}
        self._closed = False

    def index(self) -> LetterIndex:
        with self._lock:
            if self._index is None:
                context = self._context
                path = index_path(context.data, context.app.name)
                self._index = LetterIndex(path, context.cluster, context.app)
            return self._index

    def start(self, topic: DeadTopic, request: JobRequest) -> LetterJob:
        context = self._context
        job = LetterJob(
            *(context.cluster, context.app, self.index(), topic, request, context.clock, context.future_us)
        )
        with self._lock:
            if self._closed:
                raise ShuttingDown(
                    "the server is about to stop", hint="send the request again after the restart"
                )
            current = self._current
            if current is not None and not current.ended.is_set():
                raise ReplayInProgress(
                    f"a job of topic {current.topic.name!r} is still running ({current.done:,} letters so far)",
                    hint=f"wait until GET /v1/dead/{current.topic.name}/replay shows that it has ended, or cancel it",
                    members={"job": current.id, "topic": current.topic.name},
                )
            self._current = self._last[topic.name] = job
        threading.Thread(target=self._run, args=(job,), name="serve dead letters", daemon=True).start()
        return job

    def last(self, topic: str) -> LetterJob | None:
        return self._last.get(topic)

    def close(self) -> None:
        with self._lock:
            self._closed, current = True, self._current
        if current is not None:
            current.cancel()
            current.ended.wait(_CLOSE_S)
        if self._index is not None and (current is None or current.ended.is_set()):
            self._index.close()

    def _run(self, job: LetterJob) -> None:
        try:
            job.run()
        except Exception as error:
            self._report(error)
