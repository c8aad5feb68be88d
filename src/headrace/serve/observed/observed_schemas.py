"""The shapes of what is told of the app."""

from __future__ import annotations

from typing import Any

from headrace.serve.schema_parts import NUMBER, TEXT, TEXTS, TRUTH, WHOLE, many, or_null, ref, shape

__all__ = ["OBSERVED_SCHEMAS"]

_COUNT, _RATE, _SECONDS = or_null(WHOLE), or_null(NUMBER), or_null(NUMBER)
_STATE = {"type": "string", "enum": ["good", "warning", "bad"]}
_LAG = shape({"records": _COUNT, "bytes": _COUNT, "seconds": _SECONDS})
_CAUSE = {
    **TRUTH,
    "description": "Whether it is the bottleneck, or has ended; not whether it suffers from one.",
}
_PLACE = shape({"file": TEXT, "line": WHOLE})
_WORKER = {
    "state": TEXT,
    "why": TEXT,
    "lag": _LAG,
    "time_to_loss_s": _SECONDS,
    "dead": WHOLE,
    "cause": _CAUSE,
    "growing": TRUTH,
}
_FLOW_NODE = shape(
    {
        **_WORKER,
        "generation": _COUNT,
        "per_s_in": _RATE,
        "per_s_out": _RATE,
        "rows_in": WHOLE,
        "rows_out": WHOLE,
        "latency_ms": {**or_null(NUMBER), "description": "Of the last batch, from its plan to its commit."},
        "batch": _COUNT,
        "committed_ms": _COUNT,
        "watermark_ms": _COUNT,
        "watermark_held_by": or_null(TEXT),
        "state_rows": WHOLE,
        "state_bytes": WHOLE,
        "late": WHOLE,
    }
)
_VIEW_NODE = shape(
    {
        **_WORKER,
        "applied": _COUNT,
        "per_s": _RATE,
        "position": or_null(shape({"topic": TEXT, "offsets": {"type": "object"}, "stored_ms": WHOLE})),
        "verified": or_null(TEXT),
        "differs": or_null(TRUTH),
    }
)
_TOPIC_NODE = shape(
    {
        "state": TEXT,
        "log": TEXT,
        "end": _COUNT,
        "records": _COUNT,
        "per_s": _RATE,
        "bytes": _COUNT,
        "cause": _CAUSE,
    }
)
_SOURCE_NODE = shape({"per_s": _RATE, "cause": _CAUSE})
_ALERT = shape(
    {
        "app": TEXT,
        "alert": TEXT,
        "what": TEXT,
        "name": TEXT,
        "state": TEXT,
        "at_ms": WHOLE,
        "since_ms": WHOLE,
        "when": TEXT,
        "text": TEXT,
        "measures": {"type": "object", "additionalProperties": or_null(NUMBER)},
    }
)

OBSERVED_SCHEMAS: dict[str, dict[str, Any]] = {
    "AppGraph": shape(
        {
            "app": TEXT,
            "nodes": many(
                shape(
                    {
                        "id": TEXT,
                        "kind": {"type": "string", "enum": ["source", "topic", "flow", "view"]},
                        "name": TEXT,
                        "about": TEXT,
                        "section_path": TEXTS,
                    }
                )
            ),
            "edges": many(shape({"from": TEXT, "to": TEXT})),
        }
    ),
    "AppNow": shape(
        {
            "at_ms": WHOLE,
            "uptime_s": NUMBER,
            "live": {**TRUTH, "description": "Whether whoever runs the parts tells of them."},
            "health": shape(
                {
                    "state": _STATE,
                    "lines": many(shape({"state": _STATE, "text": TEXT, "next": TEXT, "path": TEXTS})),
                }
            ),
            "nodes": {
                "type": "object",
                "additionalProperties": {"anyOf": [_FLOW_NODE, _VIEW_NODE, _TOPIC_NODE, _SOURCE_NODE]},
            },
            "edges": {
                "type": "object",
                "additionalProperties": shape({"per_s": _RATE, "lag": _LAG, "time_to_loss_s": _SECONDS}),
            },
            "alerts": many(ref("Alert")),
        }
    ),
    "AppHistory": shape({"fields": TEXTS, "samples": many(many(or_null(NUMBER)))}),
    "Alert": _ALERT,
    "Alerts": shape(
        {
            "firing": many(ref("Alert")),
            "rules": or_null(many(shape({"alert": TEXT, "when": TEXT}))),
            "rules_why": TEXT,
            "changes": many(ref("Alert")),
        }
    ),
    "Flow": shape(
        {
            "flow": TEXT,
            "state": TEXT,
            "why": TEXT,
            "declared": or_null(_PLACE),
            "inputs": many({"type": "object"}),
            "output": {"type": "object"},
            "topics": {"type": "object"},
            "options": {"type": "object"},
            "generation": or_null({"type": "object"}),
            "plan": or_null(TEXT),
            "plan_why": TEXT,
            "error": or_null(
                shape(
                    {
                        "text": TEXT,
                        "file": or_null(TEXT),
                        "line": _COUNT,
                        "hint": TEXT,
                        "at_ms": WHOLE,
                        "code": TEXT,
                    }
                )
            ),
            "batches": many({"type": "object"}),
        }
    ),
}
