"""Collects the details of a flow: its declaration, its progress in the log, and its state in this process."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import Any

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import find_generations, progress_of, progress_topic_of
from headrace.client.progress import Progress, flow_lag
from headrace.client.records import read
from headrace.model.declarations import DELIVERIES, Flow
from headrace.model.progress import Batch, decode
from headrace.serve.errors import NotFound
from headrace.serve.monitor.documents import DeclaredAt, FlowDocument, OtherGeneration
from headrace.serve.monitor.runtime_probe import RuntimeProbe

__all__ = ["flow_detail", "flow_named"]

_BATCHES_MAX = 50
_OFFSETS_PER_BATCH_MAX = 4
"""The most offsets that one batch uses in a progress topic, including the transaction marker."""
_PLAN_CHARS_MAX = 200_000


def flow_named(app: App, name: str) -> Flow:
    flow = next((flow for flow in app.flows if flow.name == name), None)
    if flow is None:
        raise NotFound(f"flow {name[:100]!r} does not exist", hint="list the flows: GET /v1/app")
    return flow


def flow_detail(cluster: Cluster, probe: RuntimeProbe | None, flow: Flow) -> FlowDocument:
    """Query the log. If the flow runs in this process, also query Spark."""
    progress = progress_of(cluster, flow)
    running = probe.status().flows.get(flow.name) if probe else None
    plan = probe.plan(flow.name, _PLAN_CHARS_MAX) if probe and running else None
    return FlowDocument(
        flow=flow.name,
        state=running.state if running else "unknown",
        why=running.why if running else "this process does not run it; the numbers come from the log",
        declared=None if flow.location is None else DeclaredAt(flow.location.file, flow.location.line),
        inputs=_inputs(flow, progress),
        output={
            "topic": flow.writes.name,
            "log": progress.generation.output if progress else None,
            "key": list(flow.writes.key),
            "fields": progress.generation.schema if progress else None,
        },
        topics={
            "progress": _progress_topic(cluster, flow, progress),
            "late": flow.late_topic,
            "dead": flow.dead_topic,
        },
        options={
            "latency": flow.latency,
            "delivery": DELIVERIES[flow.latency],
            "deterministic": flow.deterministic,
            "unbounded": flow.unbounded,
        },
        generation=_generation(progress),
        others=_others(cluster, flow),
        plan=plan,
        plan_why=_plan_why(probe, running is not None, plan),
        error=running.failure.document() if running and running.failure else None,
        batches=[_batch(batch) for batch in reversed(_last_batches(cluster, flow, progress))],
    )


def _inputs(flow: Flow, progress: Progress | None) -> list[dict[str, Any]]:
    sources = {source.topic: source for source in progress.generation.inputs} if progress else {}
    last = progress.last if progress else None
    inputs = []
    for topic in flow.reads:
        source = sources.get(topic.name)
        seen_us = last.seen_us.get(topic.name) if last else None
        inputs.append(
            {
                "topic": topic.name,
                "log": source.log if source else None,
                "kind": topic.kind,
                "time": topic.time,
                "late_s": topic.late / timedelta(seconds=1) if topic.time else None,
                "seen_ms": None if seen_us is None else seen_us // 1_000,
            }
        )
    return inputs


def _others(cluster: Cluster, flow: Flow) -> list[OtherGeneration]:
    generations = find_generations(cluster, flow.writes.name)
    others = []
    for entry in generations.entries if generations is not None else ():
        if generations is None or entry.number == generations.serving:
            continue
        progress = progress_of(cluster, flow, entry.number)
        behind = flow_lag(cluster, progress) if progress is not None else None
        role = generations.role(entry.number)
        others.append(OtherGeneration(entry.number, role, entry.topic, behind, entry.reason))
    return others


def _generation(progress: Progress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    record = progress.generation
    return {
        "generation": record.generation,
        "started_ms": record.started_ms,
        "reason": record.reason,
        "fingerprint": record.fingerprint,
        "latency": record.latency,
        "late": record.late,
    }


def _plan_why(probe: RuntimeProbe | None, runs_here: bool, plan: str | None) -> str:
    if plan is not None:
        return ""
    if probe is None or not runs_here:
        return "this process does not run Spark; to see the plan, use headrace run --serve"
    return "Spark creates the plan with the first batch"


def _progress_topic(cluster: Cluster, flow: Flow, progress: Progress | None) -> str:
    return progress_topic_of(cluster, flow, progress.generation.generation if progress else 1)


def _last_batches(cluster: Cluster, flow: Flow, progress: Progress | None) -> list[Batch]:
    if progress is None or progress.last is None:
        return []
    topic = _progress_topic(cluster, flow, progress)
    start, end = cluster.starts(topic)[0], cluster.ends(topic)[0]
    begin = max(start, end - _BATCHES_MAX * _OFFSETS_PER_BATCH_MAX)
    batches: deque[Batch] = deque(maxlen=_BATCHES_MAX)
    for message in read(cluster, topic, {0: (begin, end)}):
        record = decode(message.value() or b"", where=f"{topic} at offset {message.offset()}")
        if isinstance(record, Batch) and record.generation == progress.generation.generation:
            batches.append(record)
    return list(batches)


def _batch(batch: Batch) -> dict[str, Any]:
    return {
        "batch": batch.batch,
        "committed_ms": batch.committed_ms,
        "rows_in": batch.rows_in,
        "rows_out": batch.rows_out,
        "late": batch.late,
        "dead": batch.dead + batch.table_dead,
        "watermark_ms": None if batch.next_watermark_us is None else batch.next_watermark_us // 1_000,
        "state_rows": batch.state_rows,
        "state_bytes": batch.state_bytes,
    }
