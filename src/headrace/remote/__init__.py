"""A server of Headrace, from any program: no Spark, no broker, HTTP only. ``pip install "headrace[remote]"``.

from headrace.remote import Remote

with Remote("http://127.0.0.1:8180", token=...) as remote:
    remote.topic("orders").write({"order_id": "o1", "pieces": 3})
    remote.view("orders").get("o1")

``AsyncRemote`` has the same, to be awaited.
"""

from __future__ import annotations

from headrace.remote.async_changes import AsyncChanges
from headrace.remote.async_remote import AsyncRemote, AsyncRows, AsyncSql, AsyncTopic, AsyncView
from headrace.remote.change import Change, LiveRows
from headrace.remote.changes import Changes
from headrace.remote.errors import (
    AnswerUnfit,
    Busy,
    Closed,
    Gone,
    Late,
    Moved,
    NotAllowed,
    NotLoggedIn,
    NotThere,
    OutcomeUnknown,
    Outdated,
    RemoteError,
    ServerFault,
    Unfit,
    Unreachable,
)
from headrace.remote.page import Page, Table
from headrace.remote.plain import literal
from headrace.remote.position import Position
from headrace.remote.records import Record
from headrace.remote.remote import Remote, Rows, Sql, Topic, View
from headrace.remote.session import Described
from headrace.remote.sql import SqlRows
from headrace.remote.written import Place, Written, WrittenMany

__all__ = [
    "AnswerUnfit",
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
    "Gone",
    "Late",
    "LiveRows",
    "Moved",
    "NotAllowed",
    "NotLoggedIn",
    "NotThere",
    "OutcomeUnknown",
    "Outdated",
    "Page",
    "Place",
    "Position",
    "Record",
    "Remote",
    "RemoteError",
    "Rows",
    "ServerFault",
    "Sql",
    "SqlRows",
    "Table",
    "Topic",
    "Unfit",
    "Unreachable",
    "View",
    "Written",
    "WrittenMany",
    "literal",
]
