"""What the app is doing: its graph, its numbers now and of late, each flow, and its alerts."""

from __future__ import annotations

from headrace.serve.observed.flow_detail import flow_detail, flow_named
from headrace.serve.observed.now_stream import EVERY_MS, MEDIA_TYPE, follow_now
from headrace.serve.parameter import integer, text
from headrace.serve.route import Answer, Call, Route, Told, json_answer
from headrace.serve.scope import OPERATIONS
from headrace.serve.work import LOG

__all__ = ["OBSERVED_ROUTES"]

_UNKEPT = {"Cache-Control": "no-store"}
_MS_MAX = 2**53 - 1


async def describe_app(call: Call) -> Answer:
    return json_answer(call.served.observed.graph.told())


async def tell_now(call: Call) -> Answer:
    sample = await call.served.observed.now()
    return Answer(sample.encoded, headers=_UNKEPT)


async def tell_history(call: Call) -> Answer:
    ring = call.served.observed.ring(call.asked.get("node", ""))
    samples = ring.samples(call.asked.get("since_ms", 0))
    return json_answer({"fields": ["at_ms", *ring.fields], "samples": samples}, headers=_UNKEPT)


async def describe_flow(call: Call) -> Answer:
    served = call.served
    flow = flow_named(served.app, call.names["flow"])

    def look() -> dict[str, object]:
        return flow_detail(served.cluster, served.observed.live, flow)

    return json_answer(await served.work.run(look, served.limits.read_s, LOG), headers=_UNKEPT)


async def list_alerts(call: Call) -> Answer:
    observed = call.served.observed
    sample = await observed.now()
    rules = observed.live.rules() if observed.live else None
    told = {
        "firing": sample.document["alerts"],
        "rules": None if rules is None else [{"alert": name, "when": when} for name, when in rules.items()],
        "rules_why": "nobody watches for alerts beside this server: headrace run does, and its settings have the rules"
        if rules is None
        else "",
        "changes": observed.noted_changes,
    }
    return json_answer(told, headers=_UNKEPT)


OBSERVED_ROUTES = (
    Route(
        *("GET", "/v1/app", OPERATIONS, describe_app, "The parts of the app, and how they hang together"),
        answers={200: Told("Nodes and edges; they change with the app's declaration only.", "AppGraph")},
    ),
    Route(
        *("GET", "/v1/app/now", OPERATIONS, tell_now, "What every part is doing"),
        about="Looked at once a second for all who ask. What is not known is null, and the node's why says why.",
        answers={200: Told("Health, nodes, edges and alerts.", "AppNow")},
        problems=(503,),
    ),
    Route(
        *("GET", "/v1/app/now/stream", OPERATIONS, follow_now, "Follow what every part is doing"),
        about="The same document as server-sent events, as often as it is made, or less often.",
        parameters=(integer("every_ms", "How long between two, at least.", *EVERY_MS),),
        answers={200: Told("Events, each with one document as its data.", media_type=MEDIA_TYPE)},
        problems=(429, 503),
    ),
    Route(
        *("GET", "/v1/app/history", OPERATIONS, tell_history, "The last quarter of an hour of a part"),
        parameters=(
            text("node", "A node's id, as /v1/app has it.", chars_max=300, example="flow:revenue"),
            integer("since_ms", "Only what was looked at then or later.", 0, _MS_MAX, 0),
        ),
        answers={200: Told("A row for each second, the oldest first.", "AppHistory")},
        problems=(404,),
    ),
    Route(
        *("GET", "/v1/flows/{flow}", OPERATIONS, describe_flow, "A flow in all detail"),
        parameters=(text("flow", "The name of a flow.", chars_max=249, where="path"),),
        answers={200: Told("Inputs, output, generation, last batches, plan and last error.", "Flow")},
        problems=(404, 503, 504),
    ),
    Route(
        *("GET", "/v1/alerts", OPERATIONS, list_alerts, "Alerts: what fires, the rules, and what changed"),
        answers={200: Told("The newest change first, 200 at most.", "Alerts")},
        problems=(503,),
    ),
)
