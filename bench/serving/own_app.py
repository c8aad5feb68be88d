"""The app whose users read what they have written: one flow and a view of it; ``BENCH_OWN`` says how it runs."""

from __future__ import annotations

import os

from bench.orders import app_of

__all__ = ["TOPIC", "VARIABLE", "VIEW", "app"]

VARIABLE = "BENCH_OWN"
TOPIC = "own-orders"
VIEW = "seen"

app, _ = app_of(os.environ.get(VARIABLE, "kept"), TOPIC, "own-made")
