"""An app whose users read their own writes: one flow and a view of its output. ``BENCH_OWN`` selects the engine."""

from __future__ import annotations

import os

from bench.flow.orders import one_flow_app

__all__ = ["TOPIC", "VARIABLE", "VIEW", "app"]

VARIABLE = "BENCH_OWN"
TOPIC = "own-orders"
VIEW = "seen"

app, _ = one_flow_app(os.environ.get(VARIABLE, "large_orders"), TOPIC, "own-made")
