"""The shape of where views stand."""

from __future__ import annotations

from typing import Any

from headrace.serve.schema_parts import NUMBER, TEXT, TEXTS, TRUTH, WHOLE, many, or_null, ref, shape

__all__ = ["STANDING_SCHEMAS"]

_COUNT = or_null(WHOLE)
_PLACE = shape({"partition": WHOLE, "at": WHOLE, "end": _COUNT, "behind": _COUNT})
_VERIFIED = shape({"verdict": TEXT, "line": TEXT, "began_ms": WHOLE, "seconds": NUMBER})
_STANDING = shape(
    {
        "view": TEXT,
        "answered_by": TEXT,
        "topic": TEXT,
        "written_by": {**or_null(TEXT), "description": "The flow that writes the topic."},
        "key": TEXTS,
        "store": TEXT,
        "state": {"type": "string", "enum": ["serving", "not serving", "not readable"]},
        "why": TEXT,
        "rows": {**_COUNT, "description": "As they were counted last."},
        "dead": _COUNT,
        "position": or_null(ref("Position")),
        "behind_records": _COUNT,
        "behind_bytes": {**_COUNT, "description": "An estimate."},
        "behind_seconds": or_null(NUMBER),
        "behind_batches": _COUNT,
        "partitions": many(_PLACE),
        "verified": or_null(_VERIFIED),
    }
)

STANDING_SCHEMAS: dict[str, dict[str, Any]] = {
    "Standings": shape(
        {
            "app": TEXT,
            "sql": {**TRUTH, "description": "Whether the server answers SQL."},
            "rows_max": {**WHOLE, "description": "Of one page."},
            "views": many(_STANDING),
        }
    ),
}
