"""Conversations about writing: a request has an id, so that it may be sent until an answer comes, and counts once."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from headrace.errors import ConfigError
from headrace.model.json_text import shown
from headrace.remote.errors import AnswerUnfit, OutcomeUnknown, RemoteError
from headrace.remote.exchange import Failed, Patience, Reply, Request, Steps, hurried, json_of, trouble
from headrace.remote.plain import body_of
from headrace.remote.session import Session, expect_positive, quoted
from headrace.remote.written import Tally, Written

__all__ = ["chunks", "deletion", "new_request", "upsert", "write", "write_part"]

_ANSWER_S = 35.0
"""A server says after 30 s that it does not know the outcome."""
_REQUEST_CHARS_MAX = 200


def new_request() -> str:
    return str(uuid.uuid4())


def upsert(value: Any, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {"value": value, **({"headers": dict(headers)} if headers else {})}


def deletion(key: Any) -> dict[str, Any]:
    return {"key": key, "value": None}


def write(session: Session, topic: str, records: Sequence[Mapping[str, Any]], request: str | None) -> Steps:
    """All of them, in one transaction of the log. ``request`` is the caller's id for it, if it has one."""
    request = new_request() if request is None else request
    if not (
        0 < len(request) <= _REQUEST_CHARS_MAX
        and request.isascii()
        and request.isprintable()
        and " " not in request
    ):
        raise ConfigError(
            f"a request's id is 1 to {_REQUEST_CHARS_MAX} visible ASCII characters, not {shown(request)}",
            hint="leave it out, and one is made",
        )
    body = body_of({"records": list(records)})
    sent = Request(
        "POST",
        f"/v1/topics/{quoted(topic)}/records",
        body,
        {"Content-Type": "application/json", "Idempotency-Key": request},
        _ANSWER_S,
    )
    patience, doubt = Patience(session.clock, session.patience_s), False
    while True:
        reply: Reply | Failed = yield hurried(sent, patience)
        error = trouble(sent, reply)
        if error is None:
            try:
                return _noted(session, cast(Reply, reply), request)
            except AnswerUnfit as unfit:
                # Somebody took it: who, is not known.
                error, doubt = unfit, True
        # What refuses it now says nothing of what became of it before.
        doubt = doubt or _may_be_carried_out(reply, error)
        pause = patience.pause(error.retry_after_s) if error.retriable else None
        if pause is not None:
            yield pause
        elif doubt:
            raise OutcomeUnknown(
                f"whether the records are in topic {topic!r} is not known: {error.message}",
                request=request,
                hint=f"write the same again with request={request!r}: it counts once",
            ) from error
        else:
            raise error


def _noted(session: Session, reply: Reply, request: str) -> Written:
    told: Written = json_of(reply, Written)
    repeated = reply.headers.get("idempotency-replayed") == "true"
    written = msgspec.structs.replace(told, request=request, repeated=repeated)
    session.own.note(written)
    return written


def _may_be_carried_out(reply: Reply | Failed, error: RemoteError) -> bool:
    if isinstance(reply, Failed):
        return reply.how in ("broken", "unfit")
    # A server of ours that is too busy has not begun.
    return reply.status >= 500 and not (reply.status == 503 and error.code.startswith("HR-SERVE-"))


def write_part(session: Session, records: Sequence[Mapping[str, Any]], request: str, tally: Tally) -> Steps:
    """One of several writes that belong together."""
    again = f"begin again with the same values, size and request={tally.request!r}: nothing is written twice"
    try:
        tally.add((yield from write(session, tally.topic, records, request)))
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            error.message,
            request=tally.request,
            detail=f"{tally.records} before them are written",
            hint=again,
        ) from error
    except RemoteError as error:
        error.detail = f"{tally.records} before them are written; {again}"
        raise


def chunks(
    records: Iterable[Mapping[str, Any]], request: str, size: int
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Many records as several requests; the same records again give the same ids."""
    expect_positive("size", size)
    found = iter(records)
    for number in itertools.count():
        some = list(itertools.islice(found, size))
        if not some:
            return
        yield f"{request}.{size}.{number}", some
