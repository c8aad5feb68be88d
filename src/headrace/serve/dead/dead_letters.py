"""The routes of dead letters: list, read, and replay. One replay runs at a time, in its own thread."""

from __future__ import annotations

import asyncio
import threading
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.clock import Clock
from headrace.ops.dead.dead_topic import DeadTopic, LetterCounts, dead_topic_named, dead_topics_in_log
from headrace.ops.dead.letters import newest_letters
from headrace.ops.dead.marks import Marks, marks_path
from headrace.ops.dead.replay import Replay, ReplayRequest
from headrace.ops.dead.replay_rules import ReplayRules
from headrace.serve.dead.documents import (
    DeadTopics,
    DeadTopicSummary,
    Letters,
    ReplayStatus,
    ReplayWanted,
    letter_document,
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
    integer,
    json_response,
    text,
)
from headrace.serve.http.tokens import ADMIN, OPERATIONS, READ_TOPIC
from headrace.serve.query.record_page import RecordCursor

__all__ = ["DeadLetters", "Replays"]

_LIMIT_MAX = 200
_SYNC_S = 2.0
"""If a replay ends within this time, the response contains its result. Otherwise the response has status 202."""
_POLL_S = 0.02

_decoder = msgspec.json.Decoder(ReplayWanted)
_TOPIC = text("topic", "The name of a dead-letter topic.", chars_max=249, where="path")


class DeadLetters(Feature):
    def __init__(self, context: ServeContext) -> None:
        self._context = context
        self._counts = LetterCounts(context.cluster)
        self._replays = Replays(
            *(context.cluster, context.app, context.data, context.clock),
            lambda error: context.report("for a replay", error),
        )

    async def close(self) -> None:
        self._replays.close()

    async def list_dead(self, request: Request) -> Response:
        context = self._context

        def list_topics() -> list[DeadTopicSummary]:
            topics, log = dead_topics_in_log(context.cluster, context.app)
            marks = self._replays.marks()
            marks.catch_up()
            replayed = marks.counts()
            summaries = []
            for topic in topics:
                letters, is_exact = self._counts.count(topic.name, log)
                sizes = [size for (name, _), size in log.sizes.items() if name == topic.name]
                summaries.append(
                    DeadTopicSummary(
                        *(
                            topic.name,
                            topic.kind,
                            topic.owner,
                            letters,
                            is_exact,
                            replayed.get(topic.name, 0),
                        ),
                        bytes=sum(sizes) if sizes else None,
                    )
                )
            return summaries

        return json_response(DeadTopics(context.app.name, await context.run_on_log(list_topics)))

    async def read_letters(self, request: Request) -> Response:
        topic = self._topic(request)
        cursor = RecordCursor.parse(request.parameters["cursor"]) if "cursor" in request.parameters else None
        limit = request.parameters.get("limit", 50)
        return json_response(await self._context.run_on_log(lambda: self._letters(topic.name, cursor, limit)))

    def _letters(self, topic: str, cursor: RecordCursor | None, limit: int) -> Letters:
        context = self._context
        info = context.cluster.topic(topic)
        if cursor is not None and (info is None or cursor.topic_id != info.id):
            raise InvalidCursor(
                f"the cursor belongs to an earlier topic named {topic!r}", hint="start again without a cursor"
            )
        if info is None:
            return Letters(topic, [], at_end=True, next=None)
        before = cursor.offsets if cursor else None
        page = newest_letters(context.cluster, topic, limit, before, context.limits.answer_bytes_max)
        marks, rules = self._replays.marks(), ReplayRules(context.cluster, context.app)
        marks.catch_up()
        path = f"/v1/dead/{urllib.parse.quote(topic, safe='')}/letters"
        next_cursor = RecordCursor(info.id, dict(page.before)).encode()
        query = urllib.parse.urlencode({"cursor": next_cursor, "limit": limit})
        letters = [
            letter_document(letter, marks.find(letter.id), rules.refusal(letter)) for letter in page.letters
        ]
        return Letters(topic, letters, page.at_end, None if page.at_end else f"{path}?{query}")

    async def begin_replay(self, request: Request) -> Response:
        topic = self._topic(request)
        try:
            replay_request = _decoder.decode(request.body).replay_request()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(
                f"the body does not name the letters: {error}",
                hint='send {"letters": "all", "dry_run": true} or {"letters": [{"partition": 0, "offset": 7}]}',
            ) from None
        replay = await self._context.run_on_log(lambda: self._replays.start(topic, replay_request))
        deadline_s = request.started_s + _SYNC_S
        while not replay.ended.is_set() and self._context.clock.steady() < deadline_s:
            await asyncio.sleep(_POLL_S)
        status = 200 if replay.ended.is_set() else 202
        return json_response(ReplayStatus.of(topic.name, replay), status=status)

    async def describe_replay(self, request: Request) -> Response:
        topic = self._topic(request).name
        return json_response(ReplayStatus.of(topic, self._replays.last(topic)))

    async def cancel_replay(self, request: Request) -> Response:
        topic = self._topic(request).name
        replay = self._replays.last(topic)
        if replay is not None:
            replay.cancel()
        return json_response(ReplayStatus.of(topic, replay))

    def _topic(self, request: Request) -> DeadTopic:
        return dead_topic_named(self._context.app, request.path_values["topic"])

    routes = (
        Route(
            *("GET", "/v1/dead", OPERATIONS, list_dead, "List the dead-letter topics"),
            description="Lists the dead-letter topic of each flow and view, and the dead-letter topics that Spring"
            " created for topics of the app.",
            responses={200: ResponseDoc("The topics, and how many letters each has.", DeadTopics)},
            error_statuses=(503, 504),
        ),
        Route(
            *("GET", "/v1/dead/{topic}/letters", READ_TOPIC, read_letters, "Read dead letters"),
            description="Returns the newest letters first. Each letter has its reason, its origin, and the time at"
            " which it was written back, if any.",
            permission_name="topic",
            parameters=(
                _TOPIC,
                integer("limit", "Maximum number of letters.", 1, _LIMIT_MAX, 50),
                text(
                    "cursor",
                    "Start of the page. Take it from the URL in the field next of the previous response.",
                    chars_max=16_000,
                ),
            ),
            responses={200: ResponseDoc("A page of letters.", Letters)},
            error_statuses=(404, 503, 504),
        ),
        Route(
            *("POST", "/v1/dead/{topic}/replay", ADMIN, begin_replay, "Write dead letters back"),
            description="Writes each record unchanged to its original topic, with additional headers that name the"
            " letter. All consumers of that topic receive the record. Each letter is written exactly once, even across"
            " crashes: a letter that was written back before is skipped unless the field again is true. With"
            " dry_run, the response lists the records that would be written, but none is written. One replay runs at"
            " a time.",
            parameters=(_TOPIC,),
            body=Body(ReplayWanted, "The letters to write back, and options."),
            responses={
                200: ResponseDoc("The replay has ended; its results.", ReplayStatus),
                202: ResponseDoc("The replay is running; poll it with GET.", ReplayStatus),
            },
            error_statuses=(404, 408, 409, 413, 415, 503, 504),
        ),
        Route(
            *(
                "GET",
                "/v1/dead/{topic}/replay",
                OPERATIONS,
                describe_replay,
                "Describe a topic's last replay",
            ),
            parameters=(_TOPIC,),
            responses={200: ResponseDoc("The replay's state, progress and results.", ReplayStatus)},
            error_statuses=(404,),
        ),
        Route(
            *("POST", "/v1/dead/{topic}/cancel", ADMIN, cancel_replay, "Cancel a replay"),
            description="Letters that were already written back stay written and recorded. Starting the same replay"
            " again continues after them.",
            parameters=(_TOPIC,),
            responses={
                200: ResponseDoc("The replay's state. The replay ends shortly afterwards.", ReplayStatus)
            },
            error_statuses=(404,),
        ),
    )


_CLOSE_S = 5.0


class Replays:
    """Runs one replay at a time, and stores the last replay of each topic. Thread-safe."""

    def __init__(
        self, cluster: Cluster, app: App, data: Path, clock: Clock, report: Callable[[BaseException], None]
    ) -> None:
        self._cluster = cluster
        self._app = app
        self._path = marks_path(data, app.name)
        self._clock = clock
        self._report = report
        self._lock = threading.Lock()
        self._marks: Marks | None = None
        self._current: Replay | None = None
        self._last: dict[str, Replay] = {}
        self._closed = False

    def marks(self) -> Marks:
        """Return the index of the letters that were already written back."""
        with self._lock:
            if self._marks is None:
                self._marks = Marks(self._path, self._cluster, self._app.name)
            return self._marks

    def start(self, topic: DeadTopic, replay_request: ReplayRequest) -> Replay:
        replay = Replay(self._cluster, self._app, self.marks(), topic, replay_request, self._clock)
        with self._lock:
            if self._closed:
                raise ShuttingDown("the server is about to stop", hint="replay the letters after the restart")
            current = self._current
            if current is not None and not current.ended.is_set():
                raise ReplayInProgress(
                    f"a replay of topic {current.topic.name!r} is still running ({current.done:,} letters so far)",
                    hint=f"wait until GET /v1/dead/{current.topic.name}/replay shows that it has ended, or cancel it",
                    members={"replay": current.id, "topic": current.topic.name},
                )
            self._current = self._last[topic.name] = replay
        threading.Thread(target=self._run, args=(replay,), name="serve replay", daemon=True).start()
        return replay

    def last(self, topic: str) -> Replay | None:
        return self._last.get(topic)

    def close(self) -> None:
        with self._lock:
            self._closed, current = True, self._current
        if current is not None:
            current.cancel()
            current.ended.wait(_CLOSE_S)
        if self._marks is not None and (current is None or current.ended.is_set()):
            self._marks.close()

    def _run(self, replay: Replay) -> None:
        try:
            replay.run()
        except Exception as error:
            self._report(error)
