"""``headrace flow list``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.model.flow import Flow

__all__ = ["list_flows"]


@verb(
    "list",
    examples="""
    headrace flow list examples.shop:app
    headrace flow list examples.shop:app -b kafka:9092 --json
    """,
)
def list_flows(session: Session, app: AppName) -> None:
    """How far each flow is, as the log has it: works whoever runs them, and wherever."""
    from headrace.cli.settings import cluster_of
    from headrace.cli.view.options import checked_app

    loaded = checked_app(app)
    cluster = cluster_of(session)
    session.out.table([_row(cluster, flow) for flow in loaded.flows])


def _row(cluster: Cluster, flow: Flow) -> dict[str, Any]:
    from headrace.client.flow_lag import flow_lag
    from headrace.client.progress_log import current
    from headrace.model.flow import DELIVERIES

    found = current(cluster, flow.progress_topic)
    last = found.last if found else None
    latency = found.generation.latency if found else flow.latency
    return {
        "flow": flow.name,
        "latency": latency,
        "delivery": DELIVERIES[latency],
        "generation": found.generation.generation if found else None,
        "batch": last.batch if last else None,
        "writes": found.generation.output if found else flow.writes.name,
        "rows_in": last.totals.rows_in if last else 0,
        "rows_out": last.totals.rows_out if last else 0,
        "lag": flow_lag(cluster, found) if found else None,
        "late": last.totals.late if last else 0,
        "dead": last.totals.dead + last.totals.table_dead if last else 0,
        "watermark_us": last.next_watermark_us if last else None,
        "committed_ms": last.committed_ms if last else None,
    }
