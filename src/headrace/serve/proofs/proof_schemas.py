"""The shape of an answer about a proof, as JSON Schema."""

from __future__ import annotations

from typing import Any

from headrace.serve.schema_parts import NUMBER, TEXT, WHOLE, or_null, shape

__all__ = ["PROOF_SCHEMAS"]

_LAST = {
    "at": {**TEXT, "format": "date-time"},
    "at_ms": WHOLE,
    "seconds": NUMBER,
    "verdict": {"enum": ["proven", "different", "unprovable", "failed"]},
    "line": TEXT,
    "lines": {"type": "array", "items": TEXT},
    **dict.fromkeys(("records", "rows", "missing", "extra", "different"), WHOLE),
    "code": TEXT,
    "hint": TEXT,
}

PROOF_SCHEMAS: dict[str, dict[str, Any]] = {
    "Proof": {
        "type": "object",
        "properties": {
            "view": TEXT,
            "state": {"enum": ["idle", "running", "done"]},
            "progress": or_null(shape({"done": WHOLE, "of": WHOLE, "text": TEXT, "seconds": NUMBER})),
            "last": or_null(shape(_LAST)),
        },
        "required": ["view", "state", "progress", "last"],
    }
}
