"""An error as an answer: ``application/problem+json`` (RFC 9457), with our code and the next step."""

from __future__ import annotations

import http
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.client.errors import LogError, TopicMissing
from headrace.errors import HeadraceError
from headrace.model.errors import ValueDoesNotFit
from headrace.model.extras import ExtraMissing
from headrace.ops.dead.errors import NoDeadTopic, NoSuchLetter, TooManyLetters
from headrace.serve.errors import ServeError
from headrace.views.errors import QueryFailed, QueryTimedOut, StoreError

__all__ = ["MEDIA_TYPE", "Problem", "problem_of", "unexpected"]

MEDIA_TYPE = "application/problem+json"
_RETRY_S = "1"
_TOO_LARGE = {"HR-KAFKA-MSG_SIZE_TOO_LARGE", "HR-KAFKA-RECORD_LIST_TOO_LARGE"}


@dataclass(frozen=True, slots=True)
class Problem:
    status: int
    body: bytes
    headers: dict[str, str]

    @classmethod
    def told(
        cls,
        status: int,
        code: str,
        detail: str,
        step: str,
        members: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Problem:
        body = {
            "type": "about:blank",
            "title": http.HTTPStatus(status).phrase,
            "status": status,
            "code": code,
            "detail": detail,
            **({"next": step} if step else {}),
            **(members or {}),
        }
        retry = {"Retry-After": _RETRY_S} if status in (503, 504) else {}
        return cls(status, msgspec.json.encode(body), {**retry, **(headers or {})})


def problem_of(error: HeadraceError, request_id: str) -> Problem:
    status = _status(error)
    if status == 500:
        return unexpected(request_id, error.code)
    detail = f"{error.message}; {error.detail}" if error.detail else error.message
    if not isinstance(error, ServeError):
        return Problem.told(status, error.code, detail, error.hint)
    return Problem.told(status, error.code, detail, error.hint, error.members, error.headers)


def unexpected(request_id: str, code: str = "HR-SERVE-FAULT") -> Problem:
    """A fault of ours. What it was, with its paths and addresses, is for the log, not for whoever asked."""
    detail = "something went wrong that should not have"
    return Problem.told(500, code, detail, f"look for request {request_id} in the server's log")


def _status(error: HeadraceError) -> int:
    match error:
        case ServeError():
            return error.status
        case NoDeadTopic() | NoSuchLetter():
            return 404
        case TooManyLetters():
            return 400
        case ValueDoesNotFit():
            return 400
        case QueryTimedOut():
            return 504
        case QueryFailed():
            return 422
        case TopicMissing():
            return 404
        case ExtraMissing():
            return 501
        case LogError() if error.code in _TOO_LARGE:
            return 413
        case StoreError() | LogError():
            return 503 if error.retriable else 500
    return 500
