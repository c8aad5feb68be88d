"""What can go wrong between the log and a store.

ViewError                 (HR-VIEW-…)
├── NameRefused           a name that no view can have
├── StaleWriter           a follower that was replaced, or of an older generation, tried to write
├── PositionMoved         the store is at another position than the follower left it at; it looks again
├── DeadLetterRefused     a value that does not fit, and that the log does not take as a dead letter either
├── QueryFailed           a question that a store does not answer, or not in time
│   ├── QueryTimedOut     not in time
│   └── QuestionRefused   not in this store, or not for this view
└── StoreError            (HR-STORE-…)
    ├── StoreBusy         somebody else writes for too long; heals
    ├── StoreGone         a server that does not answer, or not yet; heals
    ├── StoreFull         no space; heals
    ├── StoreReplaced     the store was taken away under its follower; it opens the new one
    ├── StoreUnusable     cannot be opened or written, as it is
    ├── StoreForeign      something that is there, and that no follower made
    ├── StoreDamaged      what is there does not read back
    └── ShapeRefused      a schema or a key that the store cannot hold

A single value that does not fit is no error here: it becomes a dead letter (``headrace.model.errors``).
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = [
    "DeadLetterRefused",
    "NameRefused",
    "PositionMoved",
    "QueryFailed",
    "QueryTimedOut",
    "QuestionRefused",
    "ShapeRefused",
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


class DeadLetterRefused(ViewError):
    code = "HR-VIEW-DEAD-LETTER"


class QueryFailed(ViewError):
    code = "HR-VIEW-QUERY"


class QueryTimedOut(QueryFailed):
    code = "HR-VIEW-QUERY-TIME"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"the query was stopped after {timeout_s:g} s",
            hint="ask for less: by key, by a narrower range, or by columns that have an index",
        )


class QuestionRefused(QueryFailed):
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


class ShapeRefused(StoreError):
    code = "HR-STORE-SHAPE"
