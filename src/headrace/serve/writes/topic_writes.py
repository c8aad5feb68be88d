"""The route that writes records to a topic, with or without an Idempotency-Key."""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading

from headrace.serve.errors import InvalidRequest, OutcomeUnknown
from headrace.serve.http.context import ServeContext
from headrace.serve.http.executor import LOG
from headrace.serve.http.route import (
    Body,
    Feature,
    Request,
    Response,
    ResponseDoc,
    Route,
    json_response,
    text,
)
from headrace.serve.http.tokens import WRITE_TOPIC
from headrace.serve.query.topic_queries import TOPIC
from headrace.serve.query.topics import Topics
from headrace.serve.writes.idempotent_writer import IdempotentWriter, Outcome, WriteRequest
from headrace.serve.writes.plain_writer import PlainWriter
from headrace.serve.writes.records import (
    NewRecord,
    NewRecords,
    WriteRecord,
    WriteResult,
    WrittenDocument,
    add_traceparent,
    parse_records,
)

__all__ = ["TopicWrites"]

_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_GRACE_S = 2.0


class TopicWrites(Feature):
    """The first write opens the writer. The server remembers completed requests for ``requests_keep_s`` seconds."""

    def __init__(self, context: ServeContext, topics: Topics, requests_keep_s: int) -> None:
        self._context = context
        self._topics = topics
        self._requests_file = context.data / "serve" / f"{context.app.name}-requests.db"
        self._requests_keep_ms = requests_keep_s * 1_000
        self._idempotent: IdempotentWriter | None = None
        self._plain: PlainWriter | None = None
        self._lock = threading.Lock()

    async def close(self) -> None:
        if self._idempotent is not None:
            self._idempotent.close()
        if self._plain is not None:
            self._plain.close()

    def plain_writer(self) -> PlainWriter:
        context = self._context
        with self._lock:
            if self._plain is None:
                self._plain = PlainWriter(context.cluster, context.clock, context.limits.write_s)
            return self._plain

    def _idempotent_writer(self) -> IdempotentWriter:
        context = self._context
        with self._lock:
            if self._idempotent is None:
                self._idempotent = IdempotentWriter(
                    *(context.cluster, context.app.name, self._requests_file, context.clock),
                    self._requests_keep_ms,
                )
            return self._idempotent

    async def write_records(self, request: Request) -> Response:
        topic = self._topics.get_writable(request.path_values["topic"])
        key = request.headers.get("idempotency-key")
        if key is not None and _KEY.fullmatch(key) is None:
            raise InvalidRequest("Idempotency-Key must be 1 to 200 visible ASCII characters")
        traces = self._context.traces

        def prepare() -> tuple[str, list[WriteRecord]]:
            info = self._topics.get_in_log(self._topics.get(topic.name))
            return info.id, parse_records(topic, request.body, self._context.limits.records_max)

        topic_id, records = await self._context.run_on_log(prepare)
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic.name,
            "messaging.batch.message_count": len(records),
        }
        with traces.step(f"send {topic.name}", attributes, "producer"):
            records = add_traceparent(records, traces.traceparent())
            if key is None:
                return _response(await self._write(topic.name, topic_id, records), repeated=False)
            outcome = await self._write_once(request, topic.name, topic_id, records, key)
            return _response(outcome.result, repeated=outcome.repeated)

    async def _write(self, topic: str, topic_id: str, records: list[WriteRecord]) -> WriteResult:
        return await self._context.executor.run(
            lambda: self.plain_writer().write(topic, topic_id, records), self._context.limits.write_s, LOG
        )

    async def _write_once(
        self, request: Request, topic: str, topic_id: str, records: list[WriteRecord], key: str
    ) -> Outcome:
        write_s = self._context.limits.write_s
        write = WriteRequest(
            *(request.caller.token_id, key, topic, topic_id, records),
            hashlib.sha256(request.body).hexdigest(),
            self._context.clock.steady() + write_s,
        )
        self._idempotent_writer().submit(write)
        try:
            async with asyncio.timeout(write_s + _GRACE_S):
                return await asyncio.wrap_future(write.outcome)
        except TimeoutError:
            raise OutcomeUnknown(
                "the log did not confirm the records in time",
                hint="repeat the request with the same Idempotency-Key; its records are written exactly once",
            ) from None

    routes = (
        Route(
            *("POST", "/v1/topics/{topic}/records", WRITE_TOPIC, write_records, "Write records"),
            description="If one record does not match the topic's schema, no record is written. With an"
            " Idempotency-Key, the records are written atomically and exactly once. Repeating the request, even after"
            " a crash, returns the first response.",
            permission_name="topic",
            parameters=(
                TOPIC,
                text(
                    "Idempotency-Key",
                    "A key that the caller chooses for each request. The server remembers it for"
                    " serve.requests_keep_s seconds (default one week).",
                    chars_max=200,
                    where="header",
                ),
            ),
            body=Body((NewRecord, NewRecords), "One record, or a list of them in the field records."),
            responses={
                200: ResponseDoc(
                    "The partition and offset of each record, and a token for reading them.", WrittenDocument
                )
            },
            error_statuses=(404, 409, 413, 415, 422, 503, 504),
        ),
    )


def _response(result: WriteResult, *, repeated: bool) -> Response:
    headers = {"Headrace-Token": result.position_token, "Headrace-Position": result.position_token}
    if repeated:
        headers["Idempotency-Replayed"] = "true"
    return json_response(result.document(), headers=headers)
