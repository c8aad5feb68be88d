"""The apps behind the measured page. ``BENCH_PAGE`` is the number of parts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from headrace import App

__all__ = ["LARGE", "SEARCHED", "SMALL", "VARIABLE", "app", "app_of_size"]

VARIABLE = "BENCH_PAGE"
SMALL, LARGE = 5, 300
SEARCHED = "searched"
_PIPELINE = 10
_TEAMS = ("ads", "billing", "fraud", "mail", "search", "stock")


@dataclass(frozen=True)
class Sale:
    sale_id: str
    amount: int


def app_of_size(parts: int) -> App:
    """Return an app with this many parts. Sources count too, because the page draws them."""
    app = App(f"parts-{parts}")
    if parts == SMALL:
        sales = app.topic("sales", Sale, key="sale_id")
        sums = app.topic("sums", key="sale_id")
        app.flow(reads=[sales], writes=sums, name="sum")(lambda rows: rows)
        app.view("sums", sums)
        return app
    for number in range(parts // _PIPELINE):
        name = f"{_TEAMS[number % len(_TEAMS)]}-{number:02d}"
        raw = app.topic(f"{name}-raw", Sale, key="sale_id")
        clean = app.topic(f"{name}-clean", key="sale_id")
        total = app.topic(f"{name}-total", key="sale_id")
        app.flow(reads=[raw], writes=clean, name=f"{name}-clean")(lambda rows: rows)
        app.flow(reads=[clean], writes=total, name=f"{name}-total")(lambda rows: rows)
        for kind in ("a", "b", "c"):
            app.view(f"{name}-{kind}", clean)
        app.view(f"{name}-totals", total)
    return app


app = app_of_size(int(os.environ.get(VARIABLE, SMALL)))
