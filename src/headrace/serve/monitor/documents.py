"""The JSON documents about the app and its flows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace.ops.alerts.alert_log import AlertRecord
from headrace.serve.monitor.runtime_probe import FailureDocument

__all__ = ["NODES", "AlertRule", "Alerts", "AppGraph", "AppHistory", "AppNow", "DeclaredAt", "FlowDocument"]

HealthState = Literal["good", "warning", "bad"]
_Cause = Annotated[
    bool,
    Meta(
        description="True if the part is the bottleneck or has ended. False if it only suffers from another bottleneck."
    ),
]


class GraphNode(msgspec.Struct, frozen=True):
    id: str
    kind: Literal["source", "topic", "flow", "view"]
    name: str
    about: str
    section_path: list[str]


class GraphEdge(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    source: str
    target: str


class AppGraph(msgspec.Struct, frozen=True):
    app: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]


class NodeLag(msgspec.Struct, frozen=True):
    records: int | None
    bytes: int | None
    seconds: float | None


class ViewNodePosition(msgspec.Struct, frozen=True):
    topic: str
    offsets: dict[str, int]
    stored_ms: int


class EdgeNow(msgspec.Struct, frozen=True):
    per_s: float | None
    lag: NodeLag
    time_to_loss_s: float | None


class HealthLine(msgspec.Struct, frozen=True):
    state: HealthState
    text: str
    next: str
    path: list[str]


class HealthDocument(msgspec.Struct, frozen=True):
    state: HealthState
    lines: list[HealthLine]


class SourceNode(msgspec.Struct, frozen=True):
    per_s: float | None
    cause: _Cause


class TopicNode(msgspec.Struct, frozen=True):
    state: str
    log: str
    end: int | None
    records: int | None
    per_s: float | None
    bytes: int | None
    cause: _Cause


class FlowNode(msgspec.Struct, frozen=True):
    state: str
    why: str
    lag: NodeLag
    time_to_loss_s: float | None
    dead: int
    cause: _Cause
    growing: bool
    generation: int | None
    per_s_in: float | None
    per_s_out: float | None
    rows_in: int
    rows_out: int
    latency_ms: Annotated[
        float | None, Meta(description="Duration of the last batch, from planning to commit.")
    ]
    batch: int | None
    committed_ms: int | None
    watermark_ms: int | None
    watermark_held_by: str | None
    state_rows: int
    state_bytes: int
    late: int


class ViewNode(msgspec.Struct, frozen=True):
    state: str
    why: str
    lag: NodeLag
    time_to_loss_s: float | None
    dead: int
    cause: _Cause
    growing: bool
    applied: int | None
    per_s: float | None
    position: ViewNodePosition | None
    verified: str | None
    differs: bool | None


NODES = (FlowNode, ViewNode, TopicNode, SourceNode)


class AppNow(msgspec.Struct, frozen=True):
    """The sampler builds this document as plain dicts (``app_document``) and encodes it once for all clients."""

    at_ms: int
    uptime_s: float
    live: Annotated[bool, Meta(description="True if the server runs in the same process as the app's parts.")]
    health: HealthDocument
    nodes: Annotated[
        dict[str, Any],
        Meta(
            description="The state of each node, by node id.",
            extra_json_schema={
                "additionalProperties": {
                    "anyOf": [{"$ref": f"#/components/schemas/{node.__name__}"} for node in NODES]
                }
            },
        ),
    ]
    edges: dict[str, EdgeNow]
    alerts: list[AlertRecord]


class AppHistory(msgspec.Struct, frozen=True):
    fields: list[str]
    samples: list[list[float | None]]


class AlertRule(msgspec.Struct, frozen=True):
    alert: str
    when: str


class Alerts(msgspec.Struct, frozen=True):
    firing: list[AlertRecord]
    rules: list[AlertRule] | None
    rules_why: str
    changes: list[AlertRecord]


class DeclaredAt(msgspec.Struct, frozen=True):
    file: str
    line: int


class OtherGeneration(msgspec.Struct, frozen=True):
    """A generation that does not serve."""

    generation: int
    role: Annotated[str, Meta(description="building or kept")]
    log: Annotated[str, Meta(description="The topic to which it writes its rows.")]
    behind: Annotated[int | None, Meta(description="Records that it has yet to read.")]
    reason: str


class FlowDocument(msgspec.Struct, frozen=True, kw_only=True):
    flow: str
    state: str
    why: str
    declared: DeclaredAt | None
    inputs: list[dict[str, Any]]
    output: dict[str, Any]
    topics: dict[str, str]
    options: dict[str, Any]
    generation: Annotated[dict[str, Any] | None, Meta(description="The generation that serves.")]
    others: list[OtherGeneration]
    plan: str | None
    plan_why: str
    error: FailureDocument | None
    batches: list[dict[str, Any]]
