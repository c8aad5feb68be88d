"""Python clients of a Headrace server over HTTP. They need no Spark and no broker: ``pip install "headrace[remote]"``.

from headrace.remote import Remote

with Remote("http://127.0.0.1:8180", token=...) as remote:
    remote.topic("orders").write({"order_id": "o1", "pieces": 3})
    remote.view("orders").get("o1")

``AsyncRemote`` has the same methods for asyncio.
"""

from __future__ import annotations

from headrace.remote.async_remote import AsyncRemote, AsyncRows, AsyncSql, AsyncTopic, AsyncView
from headrace.remote.changes import AsyncChanges, Changes
from headrace.remote.errors import (
    Busy,
    Closed,
    InvalidRequest,
    InvalidResponse,
    Late,
    Moved,
    NotAllowed,
    NotFound,
    NotLoggedIn,
    OutcomeUnknown,
    Outdated,
    Position,
    RecordsDeleted,
    RemoteError,
    ServerFault,
    Unreachable,
)
from headrace.remote.queries import Record
from headrace.remote.remote import Remote, Rows, Sql, Topic, View
from headrace.remote.results import Change, LiveRows, Page, RecordId, Table, Written, WrittenMany
from headrace.remote.session import Described
from headrace.remote.sql import SqlRows
from headrace.remote.values import literal

__all__ = [
    "AsyncChanges",
    "AsyncRemote",
    "AsyncRows",
    "AsyncSql",
    "AsyncTopic",
    "AsyncView",
    "Busy",
    "Change",
    "Changes",
    "Closed",
    "Described",
    "InvalidRequest",
    "InvalidResponse",
    "Late",
    "LiveRows",
    "Moved",
    "NotAllowed",
    "NotFound",
    "NotLoggedIn",
    "OutcomeUnknown",
    "Outdated",
    "Page",
    "Position",
    "Record",
    "RecordId",
    "RecordsDeleted",
    "Remote",
    "RemoteError",
    "Rows",
    "ServerFault",
    "Sql",
    "SqlRows",
    "Table",
    "Topic",
    "Unreachable",
    "View",
    "Written",
    "WrittenMany",
    "literal",
]
