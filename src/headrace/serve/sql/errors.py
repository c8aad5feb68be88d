"""What a statement is answered with that is not answered.

ServeError
├── SqlRefused     400   not a SELECT, or with something in it that nobody may have
├── SqlUnfit       400   a statement that does not fit: its grammar, a column, a type, a value
├── SqlTooMuch     422   more rows, bytes or memory than there may be; the message has the value
├── SqlTooLong     504   it was stopped; the message has the time
└── SqlEnded       503   the process that answered it ended
"""

from __future__ import annotations

from headrace.serve.errors import ServeError

__all__ = ["SqlEnded", "SqlFailed", "SqlRefused", "SqlTooLong", "SqlTooMuch", "SqlUnfit"]


class SqlRefused(ServeError):
    code, status = "HR-SERVE-SQL-REFUSED", 400


class SqlUnfit(ServeError):
    code, status = "HR-SERVE-SQL", 400


class SqlTooMuch(ServeError):
    code, status = "HR-SERVE-SQL-LIMIT", 422


class SqlTooLong(ServeError):
    code, status = "HR-SERVE-SQL-TIME", 504

    def __init__(self, time_s: float) -> None:
        super().__init__(
            f"the statement was stopped after {time_s:g} s",
            hint="ask for less, by key or by a narrower range, or raise serve.sql_ms",
        )


class SqlEnded(ServeError):
    code, status = "HR-SERVE-SQL-ENDED", 503
    retriable = True


class SqlFailed(ServeError):
    """As the process told it: with a code and a status of its own."""

    def __init__(self, code: str, status: int, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.code = code
        self.status = status
