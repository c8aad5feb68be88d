"""The last message of a subscription: why it ends, whether to come again, and where to go on from."""

from __future__ import annotations

import msgspec

from headrace.errors import HeadraceError
from headrace.serve.errors import Draining
from headrace.serve.problem import problem_of, unexpected
from headrace.serve.subscriptions.errors import SlowReader
from headrace.serve.subscriptions.message import Message, message

__all__ = ["close_code", "farewell", "why_of"]

_RETRY_MS = 1_000
_RESTART = 1012
_SLOW = 4000
_COMES_AGAIN = (408, 429, 500, 503, 504)


def close_code(error: BaseException) -> int:
    """Of a WebSocket: 4000 and the status that HTTP would have, but for two."""
    match error:
        case SlowReader():
            return _SLOW
        case Draining():
            return _RESTART
        case HeadraceError():
            status = problem_of(error, "").status
            return 4503 if status == 504 else 4000 + status
    return 4500


def why_of(error: BaseException) -> str:
    return error.code if isinstance(error, HeadraceError) else "HR-SERVE-FAULT"


def farewell(error: BaseException, cursor: str | None, request_id: str) -> Message:
    if isinstance(error, (SlowReader, Draining)):
        told = {"code": error.code, "detail": error.message, "next": error.hint}
        again = True
    else:
        problem = (
            problem_of(error, request_id) if isinstance(error, HeadraceError) else unexpected(request_id)
        )
        found = msgspec.json.decode(problem.body, type=dict[str, object])
        told = {name: str(found.get(name, "")) for name in ("code", "detail", "next")}
        again = problem.status in _COMES_AGAIN
    return message(
        "bye",
        {"close": close_code(error), **told, "cursor": cursor, "retry_ms": _RETRY_MS if again else None},
    )
