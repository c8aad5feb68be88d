"""The shapes of the console's bodies, as JSON Schema."""

from __future__ import annotations

from typing import Any

from headrace.serve.console.search_body import LIMIT_MAX
from headrace.serve.console.where import WHERE_CHARS_MAX
from headrace.serve.schema_parts import TEXT, WHOLE, many, or_null, shape

__all__ = ["CONSOLE_SCHEMAS"]

_OFFSET = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_OR_NUMBER = {"type": ["number", "null"]}
_LAG = dict.fromkeys(("lag", "lag_bytes", "lag_s", "time_to_loss_s"), _OR_NUMBER)


_EDGE = {
    "oneOf": [
        shape({"offset": _OFFSET}, additionalProperties=False),
        shape(
            {"time_ms": {"type": "integer", "minimum": 0, "maximum": 253_402_300_799_999}},
            additionalProperties=False,
        ),
        shape({"offsets": {"type": "object", "additionalProperties": _OFFSET}}, additionalProperties=False),
    ]
}
_BYTES = shape(
    {}, {"text": TEXT, "base64": {**TEXT, "contentEncoding": "base64"}}, additionalProperties=False
)
_TOPIC = {
    "topic": TEXT,
    "internal": {"type": "boolean"},
    "partitions": WHOLE,
    "offline": WHOLE,
    "replicas": WHOLE,
    "records": WHOLE,
    "bytes": _OR_NUMBER,
    "per_s": _OR_NUMBER,
    "cleanup": {"type": ["string", "null"]},
    "retention_s": _OR_NUMBER,
    "retention_bytes": _OR_NUMBER,
    "kind": {"type": ["string", "null"]},
}

CONSOLE_SCHEMAS: dict[str, dict[str, Any]] = {
    "LogTopics": shape({"topics": many(shape(_TOPIC))}),
    "LogTopic": shape(
        {
            **_TOPIC,
            "configs": many(shape({"config": TEXT, "value": {"type": ["string", "null"]}, "source": TEXT})),
            "partition_list": many(shape({"partition": WHOLE, "start": WHOLE, "end": WHOLE})),
            "written_by": many(shape({"kind": TEXT, "name": TEXT})),
            "read_by": many(shape({"kind": TEXT, "name": TEXT})),
            "lost_after_ms": _OR_NUMBER,
            "lost_by": {"type": ["string", "null"]},
        }
    ),
    "LogRecord": shape(
        {
            "topic": TEXT,
            "record": shape(
                {
                    "partition": WHOLE,
                    "offset": WHOLE,
                    "at_ms": _OR_NUMBER,
                    "key": {"type": ["object", "null"]},
                    "value": {"type": ["object", "null"]},
                    "headers": many({"type": "object"}),
                }
            ),
        }
    ),
    "SearchBody": shape(
        {},
        {
            "where": {**TEXT, "maxLength": WHERE_CHARS_MAX},
            "from": or_null(_EDGE),
            "to": or_null(_EDGE),
            "partitions": or_null({**many(_NUMBER), "maxItems": 10_000}),
            "newest_first": {"type": "boolean", "default": True},
            "limit": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 50},
        },
        additionalProperties=False,
    ),
    "RawRecord": shape(
        {"value": or_null(_BYTES)},
        {
            "key": or_null(_BYTES),
            "headers": {
                **many(
                    shape(
                        {"name": {**TEXT, "minLength": 1, "maxLength": 1_000}},
                        {"text": TEXT, "base64": TEXT},
                        additionalProperties=False,
                    )
                ),
                "maxItems": 100,
            },
            "partition": or_null(_NUMBER),
        },
        additionalProperties=False,
        description="Of text and base64, each has one.",
    ),
    "LogGroups": shape(
        {"groups": many(shape({"group": TEXT, "state": TEXT, "type": TEXT, "topics": many(TEXT), **_LAG}))}
    ),
    "LogGroup": shape(
        {
            "group": TEXT,
            "state": TEXT,
            "type": TEXT,
            **_LAG,
            "members": many(shape({"member": TEXT, "client": TEXT, "host": TEXT})),
            "partitions": many(shape({"topic": TEXT, "partition": WHOLE, **_LAG})),
        }
    ),
    "Seek": shape(
        {"to": {**TEXT, "minLength": 1, "maxLength": 100}},
        {
            "topic": or_null({**TEXT, "minLength": 1, "maxLength": 249}),
            "partitions": or_null({**many(_NUMBER), "maxItems": 10_000}),
            "dry_run": {"type": "boolean", "default": True},
        },
        additionalProperties=False,
    ),
    "Moves": shape(
        {
            "group": TEXT,
            "dry_run": {"type": "boolean"},
            "moves": many(
                shape({"topic": TEXT, "partition": WHOLE, "old": {"type": ["integer", "null"]}, "new": WHOLE})
            ),
            "at_work": many(TEXT),
        }
    ),
}
