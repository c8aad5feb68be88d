"""``headrace graph``: the declarations of an app in formats of other tools. No part of the app runs."""

from __future__ import annotations

import json
import re
from datetime import datetime

from tests.cli.runner import Headrace

WITHOUT_BROKER = Headrace("127.0.0.1:9")
SHOP = "examples.shop:app"


def test_every_node_and_edge_is_in_each_graph_format() -> None:
    (document,) = WITHOUT_BROKER.ok("graph", SHOP, "--json").json
    nodes = {item["id"]: item for item in document["nodes"]}
    edges = {(item["from"], item["to"]) for item in document["edges"]}
    assert {"topic:orders", "flow:enrich_orders", "view:ranking", "source:orders"} <= nodes.keys()
    assert {("topic:orders", "flow:enrich_orders"), ("flow:enrich_orders", "topic:sales")} <= edges

    table = WITHOUT_BROKER.ok("graph", SHOP).out.splitlines()
    assert len(table) == 1 + len(edges)
    assert re.search(r"^enrich_orders +flow +sales +topic", "\n".join(table), re.MULTILINE)

    mermaid = WITHOUT_BROKER.ok("graph", SHOP, "--format", "mermaid").out.splitlines()
    assert mermaid[0] == "flowchart LR"
    named = dict(re.findall(r'^    (n\d+)\W+"([^"]+)"', "\n".join(mermaid), re.MULTILINE))
    drawn = {
        (named[begin], named[end]) for begin, end in re.findall(r"(n\d+) --> (n\d+)", "\n".join(mermaid))
    }
    assert drawn == {(nodes[begin]["name"], nodes[end]["name"]) for begin, end in edges}

    dot = WITHOUT_BROKER.ok("graph", SHOP, "--format", "dot").out
    assert dot.startswith('digraph "shop" {')
    assert set(re.findall(r'"([^"]+)" -> "([^"]+)"', dot)) == edges


def test_openlineage_has_a_job_event_per_flow_and_view() -> None:
    lines = WITHOUT_BROKER.ok("graph", SHOP, "--format", "openlineage", "-b", "kafka-1:9092,kafka-2:9092").out
    events = {item["job"]["name"]: item for item in map(json.loads, lines.splitlines())}
    enrich = events["flow.enrich_orders"]
    log = "kafka://kafka-1:9092"
    assert sorted(item["name"] for item in enrich["inputs"]) == ["orders", "products"]
    assert {item["namespace"] for item in (*enrich["inputs"], *enrich["outputs"])} == {log}
    assert enrich["outputs"] == [{"namespace": log, "name": "sales"}]
    assert enrich["job"]["namespace"] == "headrace://shop"
    assert datetime.fromisoformat(enrich["eventTime"]).tzinfo is not None
    assert enrich["schemaURL"].endswith("#/$defs/JobEvent")
    assert events["view.ranking"]["inputs"] == [{"namespace": log, "name": "ranking"}]
    assert len(events) == 4 + 5
