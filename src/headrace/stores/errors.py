"""Errors of views and their stores.

ViewError                 (HR-VIEW-…)
├── NameRefused           the name is not valid for a view
├── StaleWriter           a follower tried to write after another follower or generation replaced it
├── PositionMoved         the store is not at the position that the follower wrote last; the follower reads it again
├── NoKeptPart            the view has no former serving part to switch back to
├── DeadLetterRefused     a value does not match the schema, and the log rejects its dead letter
├── QueryFailed           a query failed
│   ├── QueryTimedOut     the query exceeded its timeout
│   └── QueryRefused      the store does not support this query, or not for this view
└── StoreError            (HR-STORE-…)
    ├── StoreBusy         another program blocks the store; the follower retries
    ├── StoreGone         the server or disk does not respond; the follower retries
    ├── StoreFull         no space is left; the follower retries
    ├── StoreReplaced     the store was replaced while it was open; the follower opens the new store
    ├── StoreUnusable     the store cannot be opened or written in its current state
    ├── StoreForeign      another program created the table, file or key
    ├── StoreDamaged      the content of the store cannot be decoded
    └── SchemaRefused     the store does not support the schema or the key

If a single value does not match the schema, the follower writes a dead letter instead of raising one of these errors
(``headrace.model.errors``).
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = [
    "DeadLetterRefused",
    "NameRefused",
    "NoKeptPart",
    "PositionMoved",
    "QueryFailed",
    "QueryRefused",
    "QueryTimedOut",
    "SchemaRefused",
    "StaleWriter",
    "StoreBusy",
    "StoreDamaged",
    "StoreError",
    "StoreForeign",
    "StoreFull",
    "StoreGone",
    "StoreReplaced",
    "StoreUnusable",
    "ViewError",
]


class ViewError(HeadraceError):
    code = "HR-VIEW-FAILED"


class NameRefused(ViewError):
    code = "HR-VIEW-NAME"


class StaleWriter(ViewError):
    code = "HR-VIEW-STALE"


class PositionMoved(ViewError):
    code = "HR-VIEW-MOVED"
    retriable = True


class NoKeptPart(ViewError):
    code = "HR-VIEW-NOT-KEPT"


class DeadLetterRefused(ViewError):
    code = "HR-VIEW-DEAD-LETTER"


class QueryFailed(ViewError):
    code = "HR-VIEW-QUERY"


class QueryTimedOut(QueryFailed):
    code = "HR-VIEW-QUERY-TIME"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"the query was stopped after {timeout_s:g} s",
            hint="query by key, by a narrower range or by indexed columns, or raise the timeout",
        )


class QueryRefused(QueryFailed):
    code = "HR-VIEW-QUESTION"


class StoreError(ViewError):
    code = "HR-STORE-FAILED"


class StoreBusy(StoreError):
    code = "HR-STORE-BUSY"
    retriable = True


class StoreGone(StoreError):
    code = "HR-STORE-GONE"
    retriable = True


class StoreFull(StoreError):
    code = "HR-STORE-FULL"
    retriable = True


class StoreReplaced(StoreError):
    code = "HR-STORE-REPLACED"
    retriable = True


class StoreUnusable(StoreError):
    code = "HR-STORE-UNUSABLE"


class StoreForeign(StoreError):
    code = "HR-STORE-FOREIGN"


class StoreDamaged(StoreError):
    code = "HR-STORE-DAMAGED"


class SchemaRefused(StoreError):
    code = "HR-STORE-SHAPE"
