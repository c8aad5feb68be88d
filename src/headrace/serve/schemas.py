"""The shapes of bodies, as JSON Schema: what ``headrace.serve.route`` names."""

from __future__ import annotations

from typing import Any

from headrace.serve.console.schemas import CONSOLE_SCHEMAS
from headrace.serve.dead.dead_schemas import DEAD_SCHEMAS
from headrace.serve.observed.observed_schemas import OBSERVED_SCHEMAS
from headrace.serve.proofs.proof_schemas import PROOF_SCHEMAS
from headrace.serve.schema_parts import TEXT, TEXTS, WHOLE, or_null, ref, shape
from headrace.serve.standings.standing_schemas import STANDING_SCHEMAS
from headrace.serve.subscriptions.wanted import LIMIT_MAX

__all__ = ["SCHEMAS"]

_ROW = {"type": "object", "description": "By column, as values of the log are written."}
_VIEW = {"view": TEXT, "answered_by": TEXT, "topic": TEXT, "key": TEXTS, "store": TEXT}
_TOPIC = {"topic": TEXT, "kind": TEXT, "key": TEXTS, "written_by": or_null(TEXT)}
_BEHIND = {"behind_records": or_null(WHOLE), "behind_seconds": or_null({"type": "number"})}
_NEW_RECORD = shape(
    {"value": {"type": ["object", "null"]}},
    {"key": {"type": "object"}, "headers": {"type": "object", "additionalProperties": TEXT}},
    additionalProperties=False,
)

SCHEMAS: dict[str, dict[str, Any]] = {
    "Problem": shape(
        {"type": TEXT, "title": TEXT, "status": WHOLE, "code": TEXT, "detail": TEXT},
        {"next": TEXT, "position": or_null(ref("Position"))},
        description="RFC 9457. code is stable; next says what to do.",
    ),
    "Position": shape(
        {
            "token": {**TEXT, "description": "For after: what is read with it shows no less."},
            "topic": TEXT,
            "offsets": {"type": "object", "additionalProperties": WHOLE},
        },
        {"generation": WHOLE, "batch": WHOLE, "stored": {**TEXT, "format": "date-time"}},
        description="What is shown: all of the topic before these offsets, and nothing behind them.",
    ),
    "ViewList": shape({"app": TEXT, "views": {"type": "array", "items": shape(_VIEW)}}),
    "View": shape(
        {
            **_VIEW,
            "state": TEXT,
            **_BEHIND,
            "position": or_null(ref("Position")),
            "columns": {"type": "array", "items": {"type": "object"}},
        },
        {"dead": WHOLE},
    ),
    "Rows": shape(
        {
            "view": TEXT,
            "position": ref("Position"),
            "moved": {"type": "boolean", "description": "Whether the view moved since the first page."},
            "rows": {"type": "array", "items": _ROW},
        },
        {"next": {**TEXT, "description": "The next page; not there on the last."}},
    ),
    "Row": shape({"view": TEXT, "position": ref("Position"), "row": _ROW}),
    "Statement": shape(
        {"sql": TEXT},
        {"parameters": {"type": "array", "items": {"type": ["string", "number", "boolean", "null"]}}},
        additionalProperties=False,
    ),
    "SqlRows": shape(
        {
            "positions": {
                "type": "object",
                "additionalProperties": ref("Position"),
                "description": "By the names of the views in the statement.",
            },
            "columns": {"type": "array", "items": shape({"name": TEXT, "type": TEXT})},
            "rows": {"type": "array", "items": {"type": "array"}},
        }
    ),
    "TopicList": shape({"app": TEXT, "topics": {"type": "array", "items": shape(_TOPIC)}}),
    "Topic": shape(
        {
            **_TOPIC,
            "fields": or_null({"type": "array", "items": {"type": "object"}}),
            "log_topic": or_null(TEXT),
            "partitions": {
                "type": "array",
                "items": shape({"partition": WHOLE, "start": WHOLE, "end": WHOLE}),
            },
        }
    ),
    "Records": shape(
        {
            "topic": TEXT,
            "position": ref("Position"),
            "records": {
                "type": "array",
                "items": shape(
                    {"partition": WHOLE, "offset": WHOLE, "time": {**TEXT, "format": "date-time"}}
                ),
            },
            "at_end": {"type": "boolean"},
            "next": TEXT,
        }
    ),
    "NewRecord": _NEW_RECORD,
    "NewRecords": {
        "anyOf": [
            ref("NewRecord"),
            shape(
                {"records": {"type": "array", "items": ref("NewRecord"), "minItems": 1, "maxItems": 1_000}},
                additionalProperties=False,
            ),
        ]
    },
    "Written": shape(
        {
            "topic": TEXT,
            "records": {"type": "array", "items": shape({"partition": WHOLE, "offset": WHOLE})},
            "token": TEXT,
        }
    ),
    "Alive": shape({"alive": {"type": "boolean"}}),
    "Ready": shape(
        {"ready": {"type": "boolean"}, "draining": {"type": "boolean"}},
        {"log": TEXT, "views": {"type": "array", "items": {"type": "object"}}},
    ),
    "Subscribe": shape(
        {"type": {"const": "subscribe"}},
        {
            **{
                name: or_null(TEXT)
                for name in ("token", "filter", "prefix", "from", "to", "match", "sort", "cursor")
            },
            "limit": or_null({"type": "integer", "minimum": 1, "maximum": LIMIT_MAX}),
        },
        additionalProperties=False,
        description="The first message of a WebSocket, and the only one that a client sends.",
    ),
    **DEAD_SCHEMAS,
    **PROOF_SCHEMAS,
    **OBSERVED_SCHEMAS,
    **STANDING_SCHEMAS,
    "OpenApi": {"type": "object"},
    **CONSOLE_SCHEMAS,
}
