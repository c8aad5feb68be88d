"""The errors of the server. Each has an HTTP status, a stable code, and a hint about what to do next.

ServeError                         (HR-SERVE-…)
├── InvalidRequest          400   an invalid parameter, header or body
├── InvalidFilter           400   an invalid filter or sort
├── InvalidCursor           400   an invalid page cursor or subscription cursor
├── InvalidPositionToken    400   the parameter ``after`` is no position token, or its topics are no input of the view
├── HostNotAllowed          400   the Host header does not name this server
├── InvalidExpression       400   an invalid search expression; the message has its line and column
├── OffsetNotFound          400   the partition has no such offset, or the text is neither an offset nor a time
├── SqlRefused              400   not a SELECT, or a function or table that is not allowed
├── SqlInvalid              400   wrong syntax, column, type or value
├── NotLoggedIn             401   the access token is missing, unknown, revoked or expired
├── NotAllowed              403   the access token lacks the scope
├── OriginRefused           403   the request comes from a page of another origin
├── ForwardedRefused        403   a proxy forwarded the request, and no access tokens exist
├── NotFound                404   no such route, view, topic or row
├── MethodNotAllowed        405   the route does not support the HTTP method
├── RequestBodyTimeout      408   the body did not arrive in time
├── FirstMessageTimeout     408   the client opened a WebSocket but sent no first message in time
├── PositionTokenOutdated   409   ``after`` refers to a deleted topic or an old generation
├── ViewChanged             409   the view changed after the first page was read
├── TopicNotWritable        409   clients may not write to the topic, or must use the route that checks its schema
├── ReplayInProgress        409   another replay is running
├── ProofInProgress         409   another view is being verified
├── ProofNotAvailable       409   this server cannot verify the view
├── GroupActive             409   the consumer group has active members, which would overwrite new offsets
├── CursorExpired           409   the changes after the cursor are not available: subscribe without a cursor
│   └── TooManyMissedChanges      the missed changes do not fit into the history
├── RecordsDeleted          410   the log has deleted the records
├── BodyTooLarge            413   the request body is too large
├── UnsupportedMediaType    415   the body is not uncompressed JSON
├── IdempotencyKeyReused    422   the Idempotency-Key was used before with another body
├── LimitTooLarge           422   the first rows of a subscription are too large for the server to retain
├── OrderNotSupported       422   the topic has rows of one key in several partitions, so changes have no order
├── SqlLimitExceeded        422   too many rows or bytes, or too much memory; the message has the limit
├── TokenQuotaExceeded      429   the access token already uses its full share of a resource
├── TooManySubscribers      429   the server has reached its subscriber limit
├── TooBusy                 503   too many concurrent requests
├── ShuttingDown            503   the server is about to stop
├── Unavailable             503   the view is not built yet, or cannot be read at the moment
├── SlowReader              503   changes arrived faster than the subscriber read them, for too long
├── SearchEnded             503   the process that ran the search ended
├── SqlWorkerDied           503   the process that ran the statement died
├── SqlFailed                     an error that the worker process reported, with its code and status
├── OutcomeUnknown          504   the server does not know whether the records were written
├── SqlTimedOut             504   the statement was stopped; the message has the time limit
└── PositionTimeout         504   the view did not reach the requested position in time
"""

from __future__ import annotations

from typing import Any

from headrace.errors import HeadraceError

__all__ = [
    "BodyTooLarge",
    "CursorExpired",
    "FirstMessageTimeout",
    "ForwardedRefused",
    "GroupActive",
    "HostNotAllowed",
    "IdempotencyKeyReused",
    "InvalidCursor",
    "InvalidExpression",
    "InvalidFilter",
    "InvalidPositionToken",
    "InvalidRequest",
    "LimitTooLarge",
    "MethodNotAllowed",
    "NotAllowed",
    "NotFound",
    "NotLoggedIn",
    "OffsetNotFound",
    "OrderNotSupported",
    "OriginRefused",
    "OutcomeUnknown",
    "PositionTimeout",
    "PositionTokenOutdated",
    "ProofInProgress",
    "ProofNotAvailable",
    "RecordsDeleted",
    "ReplayInProgress",
    "RequestBodyTimeout",
    "SearchEnded",
    "ServeError",
    "ShuttingDown",
    "SlowReader",
    "SqlFailed",
    "SqlInvalid",
    "SqlLimitExceeded",
    "SqlRefused",
    "SqlTimedOut",
    "SqlWorkerDied",
    "TokenQuotaExceeded",
    "TooBusy",
    "TooManyMissedChanges",
    "TooManySubscribers",
    "TopicNotWritable",
    "Unavailable",
    "UnsupportedMediaType",
    "ViewChanged",
]


class ServeError(HeadraceError):
    code = "HR-SERVE-FAILED"
    status = 500

    def __init__(
        self,
        message: str,
        *,
        detail: str = "",
        hint: str = "",
        members: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.members = members or {}
        """Additional fields of the problem document, such as a position."""
        self.headers = headers or {}


class InvalidRequest(ServeError):
    code, status = "HR-SERVE-REQUEST", 400


class InvalidFilter(ServeError):
    code, status = "HR-SERVE-FILTER", 400


class InvalidCursor(ServeError):
    code, status = "HR-SERVE-CURSOR", 400


class InvalidPositionToken(ServeError):
    code, status = "HR-SERVE-AFTER", 400


class HostNotAllowed(ServeError):
    code, status = "HR-SERVE-HOST", 400


class NotLoggedIn(ServeError):
    code, status = "HR-SERVE-LOGIN", 401


class NotAllowed(ServeError):
    code, status = "HR-SERVE-SCOPE", 403


class OriginRefused(ServeError):
    code, status = "HR-SERVE-ORIGIN", 403


class ForwardedRefused(ServeError):
    code, status = "HR-SERVE-FORWARDED", 403


class NotFound(ServeError):
    code, status = "HR-SERVE-NOT-THERE", 404


class MethodNotAllowed(ServeError):
    code, status = "HR-SERVE-METHOD", 405


class RequestBodyTimeout(ServeError):
    code, status = "HR-SERVE-SLOW", 408
    retriable = True


class PositionTokenOutdated(ServeError):
    code, status = "HR-SERVE-AFTER-OUTDATED", 409


class ViewChanged(ServeError):
    code, status = "HR-SERVE-MOVED", 409
    retriable = True


class TopicNotWritable(ServeError):
    code, status = "HR-SERVE-DERIVED", 409


class ReplayInProgress(ServeError):
    code, status = "HR-SERVE-REPLAYING", 409
    retriable = True


class ProofInProgress(ServeError):
    code, status = "HR-SERVE-PROVING", 409
    retriable = True


class ProofNotAvailable(ServeError):
    code, status = "HR-SERVE-PROOF", 409


class RecordsDeleted(ServeError):
    code, status = "HR-SERVE-GONE", 410


class BodyTooLarge(ServeError):
    code, status = "HR-SERVE-SIZE", 413


class UnsupportedMediaType(ServeError):
    code, status = "HR-SERVE-MEDIA", 415


class IdempotencyKeyReused(ServeError):
    code, status = "HR-SERVE-KEY-REUSED", 422


class TokenQuotaExceeded(ServeError):
    code, status = "HR-SERVE-SHARE", 429
    retriable = True


class TooBusy(ServeError):
    code, status = "HR-SERVE-BUSY", 503
    retriable = True


class ShuttingDown(ServeError):
    code, status = "HR-SERVE-DRAINING", 503
    retriable = True


class Unavailable(ServeError):
    code, status = "HR-SERVE-NOT-SERVING", 503
    retriable = True


class OutcomeUnknown(ServeError):
    code, status = "HR-SERVE-OUTCOME", 504
    retriable = True


class PositionTimeout(ServeError):
    code, status = "HR-SERVE-LATE", 504
    retriable = True


class FirstMessageTimeout(ServeError):
    code, status = "HR-SERVE-FIRST-MESSAGE", 408
    retriable = True


class CursorExpired(ServeError):
    code, status = "HR-SERVE-CURSOR-OLD", 409

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the subscription cannot resume from the cursor: {why}",
            hint="discard your rows and subscribe without a cursor; the server then sends a snapshot first",
        )


class TooManyMissedChanges(CursorExpired):
    """The changes after the cursor do not fit into the history. Every older cursor also fails until the history has
    free space.
    """


class OrderNotSupported(ServeError):
    code, status = "HR-SERVE-UNORDERED", 422


class LimitTooLarge(ServeError):
    code, status = "HR-SERVE-WINDOW", 422


class TooManySubscribers(ServeError):
    code, status = "HR-SERVE-SUBSCRIBERS", 429
    retriable = True


class SlowReader(ServeError):
    """The server sends this error only as the last message of a subscription."""

    code, status = "HR-SERVE-SLOW-READER", 503
    retriable = True


class SqlRefused(ServeError):
    code, status = "HR-SERVE-SQL-REFUSED", 400


class SqlInvalid(ServeError):
    code, status = "HR-SERVE-SQL", 400


class SqlLimitExceeded(ServeError):
    code, status = "HR-SERVE-SQL-LIMIT", 422


class SqlTimedOut(ServeError):
    code, status = "HR-SERVE-SQL-TIME", 504

    def __init__(self, time_s: float) -> None:
        super().__init__(
            f"the statement was stopped after {time_s:g} s",
            hint="select fewer rows, for example by key or by a narrower range, or raise serve.sql_ms",
        )


class SqlWorkerDied(ServeError):
    code, status = "HR-SERVE-SQL-ENDED", 503
    retriable = True


class SqlFailed(ServeError):
    """An error that the worker process reported, with its code and status."""

    def __init__(self, code: str, status: int, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.code = code
        self.status = status


class InvalidExpression(ServeError):
    code, status = "HR-SERVE-WHERE", 400


class OffsetNotFound(ServeError):
    code, status = "HR-SERVE-PLACE", 400


class GroupActive(ServeError):
    code, status = "HR-SERVE-GROUP-ACTIVE", 409
    retriable = True


class SearchEnded(ServeError):
    code, status = "HR-SERVE-SEARCH", 503
    retriable = True
