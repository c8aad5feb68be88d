"""For whoever operates it: is it alive, is it ready, what does it count; and what its routes are."""

from __future__ import annotations

import math

from headrace.broker.exposition import CONTENT_TYPE, Exposition
from headrace.serve.docs_page import CSP, docs_page
from headrace.serve.openapi import openapi
from headrace.serve.route import Answer, Call, Route, Told, json_answer
from headrace.serve.scope import OPERATIONS, PUBLIC

__all__ = ["OPERATION_ROUTES"]

_PAGE_BYTES_MAX = 4 << 20


async def alive(call: Call) -> Answer:
    return json_answer({"alive": True})


async def ready(call: Call) -> Answer:
    """Names are for those who may know them; whether all is well is for everybody."""
    served = call.served
    lags = await served.lateness.look()
    stale_s = served.serve.stale_s
    views = []
    for view in served.app.views:
        lag = lags.get(view.name)
        state = "unknown" if lag is None else lag.reader.state
        age_s = None if lag is None else lag.age_s
        late = bool(stale_s) and (age_s is None or age_s > stale_s)
        views.append(
            {
                "view": view.name,
                "ready": state == "serving" and not late,
                "state": state,
                "behind_records": lag.records if lag else None,
                "behind_seconds": None if age_s is None else round(age_s, 3),
            }
        )
    fine = not served.draining and served.lateness.trouble is None and all(one["ready"] for one in views)
    told: dict[str, object] = {"ready": fine, "draining": served.draining}
    if call.caller.may(OPERATIONS):
        trouble = served.lateness.trouble
        told |= {"log": "reachable" if trouble is None else trouble.message, "views": views}
    return json_answer(told, status=200 if fine else 503, headers={"Retry-After": "1"} if not fine else {})


async def metrics(call: Call) -> Answer:
    served = call.served
    out = Exposition(_PAGE_BYTES_MAX)
    served.counts.page(out, served.gate.count, served.waiting.waiters, served.work.under_way)
    kept = served.answers.counts()
    for place, kind, short, text in (
        (0, "gauge", "answers", "Answers that are kept."),
        (1, "gauge", "answer_bytes", "Bytes of answers that are kept."),
        (2, "counter", "answers_given_total", "Answers that were given from those that are kept."),
    ):
        out.family(f"headrace_served_view_{short}", kind, text)
        for view, told in kept.items():
            out.sample(f"headrace_served_view_{short}", {"app": served.app.name, "view": view}, told[place])
    served.subscriptions.page(out)
    served.sql.page(out)
    served.wire.page(out)
    lags = await served.lateness.look()
    for name, text, values in (
        (
            "headrace_served_view_behind_records",
            "Records that the view does not have yet.",
            {view: lag.records for view, lag in lags.items()},
        ),
        (
            "headrace_served_view_behind_seconds",
            "Since the oldest of those was written; 0 if there is none.",
            {view: lag.age_s for view, lag in lags.items()},
        ),
    ):
        out.family(name, "gauge", text)
        for view, value in values.items():
            labels = {"app": served.app.name, "view": view}
            out.sample(name, labels, math.nan if value is None else value)
    return Answer(out.text(), media_type=CONTENT_TYPE)


async def api(call: Call) -> Answer:
    return json_answer(openapi(call.served.routes, call.served.limits))


async def docs(call: Call) -> Answer:
    page = docs_page(call.served.routes)
    return Answer(page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": CSP})


OPERATION_ROUTES = (
    Route(
        *("GET", "/healthz", PUBLIC, alive, "Whether the server is alive"),
        answers={200: Told("It is.", "Alive")},
    ),
    Route(
        *("GET", "/readyz", PUBLIC, ready, "Whether every view can be read"),
        about="With a token that may read operations: the state of each view, and how far it is behind.",
        answers={
            200: Told("Every one can.", "Ready"),
            503: Told("Some cannot, or the server is about to stop.", "Ready"),
        },
    ),
    Route(
        *("GET", "/metrics", OPERATIONS, metrics, "Counts for Prometheus"),
        answers={200: Told("Prometheus' text format.", media_type=CONTENT_TYPE.partition(";")[0])},
    ),
    Route(
        *("GET", "/openapi.json", PUBLIC, api, "This description, for programs"),
        answers={200: Told("OpenAPI 3.1.", "OpenApi")},
    ),
    Route(
        *("GET", "/docs", PUBLIC, docs, "This description, for people"),
        answers={200: Told("A page that asks nobody else for anything.", media_type="text/html")},
    ),
)
