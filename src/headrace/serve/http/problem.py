"""Turns errors into responses: ``application/problem+json`` (RFC 9457), with a stable code and the next step."""

from __future__ import annotations

import http
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headrace.client.errors import LogError, MissingTopic
from headrace.errors import HeadraceError
from headrace.model.errors import MissingExtra, ValueDoesNotFit
from headrace.ops.dead.errors import CorrectionRefused, NoDeadTopic, NoSuchLetter, TooManyLetters
from headrace.serve.errors import ServeError
from headrace.serve.query.position_token import PositionDocument
from headrace.stores.errors import QueryFailed, QueryTimedOut, StoreError

__all__ = ["MEDIA_TYPE", "Problem", "ProblemDocument", "problem_of", "unexpected"]

MEDIA_TYPE = "application/problem+json"
_RETRY_S = "1"
_TOO_LARGE = {"HR-KAFKA-MSG_SIZE_TOO_LARGE", "HR-KAFKA-RECORD_LIST_TOO_LARGE"}


class ProblemDocument(msgspec.Struct, frozen=True):
    """A problem document as in RFC 9457. ``code`` is stable; ``next`` says what to do. Some problem documents have more
    members.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str
    next: str | UnsetType = UNSET
    position: PositionDocument | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class Problem:
    status: int
    body: bytes
    headers: dict[str, str]

    @classmethod
    def build(
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
        return Problem.build(status, error.code, detail, error.hint)
    return Problem.build(status, error.code, detail, error.hint, error.members, error.headers)


def unexpected(request_id: str, code: str = "HR-SERVE-FAULT") -> Problem:
    """The response to an unexpected error. Only the server's log has the details, which contain paths and addresses."""
    detail = "internal error"
    return Problem.build(
        500, code, detail, f"find the error in the server's log by the request id {request_id}"
    )


def _status(error: HeadraceError) -> int:
    match error:
        case ServeError():
            return error.status
        case NoDeadTopic() | NoSuchLetter():
            return 404
        case TooManyLetters() | CorrectionRefused():
            return 400
        case ValueDoesNotFit():
            return 400
        case QueryTimedOut():
            return 504
        case QueryFailed():
            return 422
        case MissingTopic():
            return 404
        case MissingExtra():
            return 501
        case LogError() if error.code in _TOO_LARGE:
            return 413
        case StoreError() | LogError():
            return 503 if error.retriable else 500
    return 500
