"""A flow in all detail: as it is declared, as the log has it, and as whoever runs it tells."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import Any

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.progress_log import Progress, current
from headrace.client.reading import read
from headrace.model.flow import DELIVERIES, Flow
from headrace.model.progress import Batch, decode
from headrace.serve.errors import NotThere
from headrace.serve.live import Live

__all__ = ["flow_detail", "flow_named"]

_BATCHES_MAX = 50
_MARKERS = 4
"""Offsets that a batch takes in its progress topic at most, with the end of its transaction."""
_PLAN_CHARS_MAX = 200_000


def flow_named(app: App, name: str) -> Flow:
    found = next((one for one in app.flows if one.name == name), None)
    if found is None:
        raise NotThere(f"there is no flow {name[:100]!r}", hint="see what there is: GET /v1/app")
    return found


def flow_detail(cluster: Cluster, live: Live | None, flow: Flow) -> dict[str, Any]:
    """Asks the log, and Spark where it runs here."""
    progress = current(cluster, flow.progress_topic)
    running = live.look().flows.get(flow.name) if live else None
    plan = live.plan(flow.name, _PLAN_CHARS_MAX) if live and running else None
    return {
        "flow": flow.name,
        "state": running.state if running else "unknown",
        "why": running.why if running else "this server does not run it; this is what the log has",
        "declared": None if flow.place is None else {"file": flow.place.file, "line": flow.place.line},
        "inputs": _inputs(flow, progress),
        "output": {
            "topic": flow.writes.name,
            "log": progress.generation.output if progress else None,
            "key": list(flow.writes.key),
            "fields": progress.generation.schema if progress else None,
        },
        "topics": {"progress": flow.progress_topic, "late": flow.late_topic, "dead": flow.dead_topic},
        "options": {
            "latency": flow.latency,
            "delivery": DELIVERIES[flow.latency],
            "deterministic": flow.deterministic,
            "unbounded": flow.unbounded,
        },
        "generation": _generation(progress),
        "plan": plan,
        "plan_why": _plan_why(live, running is not None, plan),
        "error": running.failure.told() if running and running.failure else None,
        "batches": [_batch(one) for one in reversed(_last_batches(cluster, flow, progress))],
    }


def _inputs(flow: Flow, progress: Progress | None) -> list[dict[str, Any]]:
    known = {one.topic: one for one in progress.generation.inputs} if progress else {}
    last = progress.last if progress else None
    found = []
    for topic in flow.reads:
        one = known.get(topic.name)
        seen_us = last.seen_us.get(topic.name) if last else None
        found.append(
            {
                "topic": topic.name,
                "log": one.log if one else None,
                "kind": topic.kind,
                "time": topic.time,
                "late_s": topic.late / timedelta(seconds=1) if topic.time else None,
                "seen_ms": None if seen_us is None else seen_us // 1_000,
            }
        )
    return found


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
    }


def _plan_why(live: Live | None, is_run: bool, plan: str | None) -> str:
    if plan is not None:
        return ""
    if live is None or not is_run:
        return "Spark has the plan, and it does not run beside this server: headrace run --serve has it"
    return "Spark makes the plan with the first batch, and has none yet"


def _last_batches(cluster: Cluster, flow: Flow, progress: Progress | None) -> list[Batch]:
    if progress is None or progress.last is None:
        return []
    topic = flow.progress_topic
    start, end = cluster.starts(topic)[0], cluster.ends(topic)[0]
    begin = max(start, end - _BATCHES_MAX * _MARKERS)
    found: deque[Batch] = deque(maxlen=_BATCHES_MAX)
    for message in read(cluster, topic, {0: (begin, end)}):
        record = decode(message.value() or b"", where=f"{topic} at offset {message.offset()}")
        if isinstance(record, Batch) and record.generation == progress.generation.generation:
            found.append(record)
    return list(found)


def _batch(one: Batch) -> dict[str, Any]:
    return {
        "batch": one.batch,
        "committed_ms": one.committed_ms,
        "rows_in": one.rows_in,
        "rows_out": one.rows_out,
        "late": one.late,
        "dead": one.dead + one.table_dead,
        "watermark_ms": None if one.next_watermark_us is None else one.next_watermark_us // 1_000,
        "state_rows": one.state_rows,
        "state_bytes": one.state_bytes,
    }
