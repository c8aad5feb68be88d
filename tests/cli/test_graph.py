"""``headrace graph``: what an app declares, as others read it. Nothing runs."""

from __future__ import annotations

import json
import re
from datetime import datetime

from tests.cli.runner import Headrace

NOBODY = Headrace("127.0.0.1:9")
SHOP = "examples.shop:app"


def test_every_part_and_every_way_between_them_is_in_each_format() -> None:
    (told,) = NOBODY.ok("graph", SHOP, "--json").json
    nodes = {one["id"]: one for one in told["nodes"]}
    edges = {(one["from"], one["to"]) for one in told["edges"]}
    assert {"topic:orders", "flow:enrich_orders", "view:ranking", "source:orders"} <= nodes.keys()
    assert {("topic:orders", "flow:enrich_orders"), ("flow:enrich_orders", "topic:sales")} <= edges

    table = NOBODY.ok("graph", SHOP).out.splitlines()
    assert len(table) == 1 + len(edges)
    assert re.search(r"^enrich_orders +flow +sales +topic", "\n".join(table), re.MULTILINE)

    mermaid = NOBODY.ok("graph", SHOP, "--format", "mermaid").out.splitlines()
    assert mermaid[0] == "flowchart LR"
    named = dict(re.findall(r'^    (n\d+)\W+"([^"]+)"', "\n".join(mermaid), re.MULTILINE))
    drawn = {
        (named[begin], named[end]) for begin, end in re.findall(r"(n\d+) --> (n\d+)", "\n".join(mermaid))
    }
    assert drawn == {(nodes[begin]["name"], nodes[end]["name"]) for begin, end in edges}

    dot = NOBODY.ok("graph", SHOP, "--format", "dot").out
    assert dot.startswith('digraph "shop" {')
    assert set(re.findall(r'"([^"]+)" -> "([^"]+)"', dot)) == edges


def test_flows_and_views_are_jobs_of_open_lineage_over_topics_of_the_log() -> None:
    lines = NOBODY.ok("graph", SHOP, "--format", "openlineage", "-b", "kafka-1:9092,kafka-2:9092").out
    events = {one["job"]["name"]: one for one in map(json.loads, lines.splitlines())}
    enrich = events["flow.enrich_orders"]
    log = "kafka://kafka-1:9092"
    assert sorted(one["name"] for one in enrich["inputs"]) == ["orders", "products"]
    assert {one["namespace"] for one in (*enrich["inputs"], *enrich["outputs"])} == {log}
    assert enrich["outputs"] == [{"namespace": log, "name": "sales"}]
    assert enrich["job"]["namespace"] == "headrace://shop"
    assert datetime.fromisoformat(enrich["eventTime"]).tzinfo is not None
    assert enrich["schemaURL"].endswith("#/$defs/JobEvent")
    assert events["view.ranking"]["inputs"] == [{"namespace": log, "name": "ranking"}]
    assert len(events) == 4 + 5
