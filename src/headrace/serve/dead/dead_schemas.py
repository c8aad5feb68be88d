"""The shapes of answers about dead letters, as JSON Schema."""

from __future__ import annotations

from typing import Any

from headrace.serve.schema_parts import TEXT, TRUTH, WHOLE, or_null, shape

__all__ = ["DEAD_SCHEMAS"]

_WHOLE_OR_NULL = {"type": ["integer", "null"]}
_TIME = {"type": "string", "format": "date-time"}
_PLACE = shape({"topic": TEXT, "partition": WHOLE, "offset": WHOLE})
_PLACE_OR_NULL = or_null(_PLACE)
_ORIGIN = {
    "anyOf": [
        shape({"topic": TEXT, "partition": _WHOLE_OR_NULL, "offset": _WHOLE_OR_NULL}),
        {"type": "null"},
    ]
}
_LETTER_PLACE = shape(
    {
        "partition": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        "offset": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    },
    additionalProperties=False,
)

DEAD_SCHEMAS: dict[str, dict[str, Any]] = {
    "DeadTopics": shape(
        {
            "app": TEXT,
            "topics": {
                "type": "array",
                "items": shape(
                    {
                        "topic": TEXT,
                        "kind": {"enum": ["flow", "view", "spring"]},
                        "of": TEXT,
                        "letters": WHOLE,
                        "exact": {
                            **TRUTH,
                            "description": "Whether letters is counted; otherwise it is offsets.",
                        },
                        "replayed": WHOLE,
                        "bytes": _WHOLE_OR_NULL,
                    }
                ),
            },
        }
    ),
    "Letters": shape(
        {
            "topic": TEXT,
            "letters": {
                "type": "array",
                "items": shape(
                    {
                        "partition": WHOLE,
                        "offset": WHOLE,
                        "time": _TIME,
                        "reason": TEXT,
                        "exception": TEXT,
                        "origin": _ORIGIN,
                        "key_bytes": _WHOLE_OR_NULL,
                        "value_bytes": _WHOLE_OR_NULL,
                        "headers": {"type": "array"},
                        "replayed": {"type": ["object", "null"]},
                        "cannot": {**TEXT, "description": "Why it cannot be written back; empty if it can."},
                    }
                ),
            },
            "at_end": TRUTH,
            "next": {"type": ["string", "null"]},
        }
    ),
    "ReplayWanted": shape(
        {
            "letters": {
                "anyOf": [
                    {"const": "all"},
                    {"type": "array", "items": _LETTER_PLACE, "minItems": 1, "maxItems": 1_000},
                ]
            }
        },
        additionalProperties=False,
    ),
    "Replay": shape(
        {
            "topic": TEXT,
            "state": {"enum": ["idle", "running", "done", "cancelled", "failed"]},
            "replay": {"type": ["string", "null"]},
        }
    ),
}
_WANTED = DEAD_SCHEMAS["ReplayWanted"]["properties"]
_WANTED["dry_run"] = TRUTH
_WANTED["again"] = {**TRUTH, "description": "Also those that were written back before."}
_WANTED["per_s"] = {"type": ["number", "null"], "minimum": 0.1, "maximum": 100_000}
DEAD_SCHEMAS["Replay"]["properties"] |= {
    "dry_run": TRUTH,
    "again": TRUTH,
    "began": _TIME,
    "ended": {"type": ["string", "null"]},
    "progress": shape({"done": WHOLE, "of": WHOLE}),
    "totals": shape(dict.fromkeys(("written", "ready", "already", "cannot", "unfit", "bytes"), WHOLE)),
    "words": {"type": "array", "items": TEXT},
    "results": {
        "type": "array",
        "items": shape(
            {
                "letter": _PLACE,
                "state": {"enum": ["ready", "written", "already", "cannot"]},
                "origin": _ORIGIN,
                "to": _PLACE_OR_NULL,
                "bytes": WHOLE,
                "why": TEXT,
                "unfit": TEXT,
                "headers": {"enum": ["kept", "unknown"]},
            }
        ),
    },
    "left_off": {**WHOLE, "description": "Results that are counted and not listed."},
    "error": {"type": ["object", "null"]},
}
