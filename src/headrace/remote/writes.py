"""Writes records to the server. Each request has an id, so that the server writes a repeated request only once."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from headrace.errors import ConfigError
from headrace.model.codec.json_text import describe_python
from headrace.remote.errors import InvalidResponse, OutcomeUnknown, RemoteError
from headrace.remote.exchange import (
    Failed,
    Reply,
    Request,
    RetryPolicy,
    Steps,
    error_of_reply,
    json_of,
    limit_to_time_left,
)
from headrace.remote.results import Tally, Written
from headrace.remote.session import Session, check_positive, quoted
from headrace.remote.values import body_of

__all__ = ["chunks", "deletion", "new_request", "upsert", "write", "write_part"]

_ANSWER_S = 35.0
"""The server responds within 30 s, even if only to report that the outcome is unknown."""
_REQUEST_CHARS_MAX = 200


def new_request() -> str:
    return str(uuid.uuid4())


def upsert(value: Any, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {"value": value, **({"headers": dict(headers)} if headers else {})}


def deletion(key: Any) -> dict[str, Any]:
    return {"key": key, "value": None}


def write(session: Session, topic: str, records: Sequence[Mapping[str, Any]], request: str | None) -> Steps:
    """Write all records in one transaction. ``request`` is the request id, or None to generate one."""
    request = new_request() if request is None else request
    if not (
        0 < len(request) <= _REQUEST_CHARS_MAX
        and request.isascii()
        and request.isprintable()
        and " " not in request
    ):
        raise ConfigError(
            f"the request id must have 1 to {_REQUEST_CHARS_MAX} visible ASCII characters,"
            f" not {describe_python(request)}",
            hint="omit it to generate one",
        )
    body = body_of({"records": list(records)})
    http_request = Request(
        "POST",
        f"/v1/topics/{quoted(topic)}/records",
        body,
        {"Content-Type": "application/json", "Idempotency-Key": request},
        _ANSWER_S,
    )
    retry_policy, may_be_written = RetryPolicy(session.clock, session.patience_s), False
    while True:
        reply: Reply | Failed = yield limit_to_time_left(http_request, retry_policy)
        error = error_of_reply(http_request, reply)
        if error is None:
            try:
                return _remember_write(session, cast(Reply, reply), request)
            except InvalidResponse as invalid:
                # The response may come from a server that is not Headrace, so the outcome is unknown.
                error, may_be_written = invalid, True
        # After an attempt with an unknown outcome, a later error does not prove that nothing was written.
        may_be_written = may_be_written or _may_have_succeeded(reply, error)
        pause = retry_policy.pause(error.retry_after_s) if error.retriable else None
        if pause is not None:
            yield pause
        elif may_be_written:
            raise OutcomeUnknown(
                f"it is unknown whether topic {topic!r} has the records: {error.message}",
                request=request,
                hint=f"repeat the write with request={request!r}: the server writes it only once",
            ) from error
        else:
            raise error


def _remember_write(session: Session, reply: Reply, request: str) -> Written:
    written: Written = json_of(reply, Written)
    repeated = reply.headers.get("idempotency-replayed") == "true"
    written = msgspec.structs.replace(written, request=request, repeated=repeated)
    session.own_writes.add(written)
    return written


def _may_have_succeeded(reply: Reply | Failed, error: RemoteError) -> bool:
    if isinstance(reply, Failed):
        return reply.how in ("broken", "unusable")
    # A Headrace server that is busy has not started the write.
    return reply.status >= 500 and not (reply.status == 503 and error.code.startswith("HR-SERVE-"))


def write_part(session: Session, records: Sequence[Mapping[str, Any]], request: str, tally: Tally) -> Steps:
    """Send one of the requests of a call of ``write_many``."""
    repeat_hint = (
        f"repeat the call with the same values, size and request={tally.request!r}: nothing is written twice"
    )
    try:
        tally.add((yield from write(session, tally.topic, records, request)))
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            error.message,
            request=tally.request,
            detail=f"{tally.records} earlier records are written",
            hint=repeat_hint,
        ) from error
    except RemoteError as error:
        error.detail = f"{tally.records} earlier records are written; {repeat_hint}"
        raise


def chunks(
    records: Iterable[Mapping[str, Any]], request: str, size: int
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Split records into requests, each with its id. The same records always get the same ids."""
    check_positive("size", size)
    iterator = iter(records)
    for number in itertools.count():
        chunk = list(itertools.islice(iterator, size))
        if not chunk:
            return
        yield f"{request}.{size}.{number}", chunk
