"""``headrace flow``: list, run and rebuild the flows of an app."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AppName, Data, Master, StopAfter, Yes, confirm_start
from headrace.cli.session import Session
from headrace.cli.verb import CommandGroup, command_group, verb

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.model.declarations import Flow
    from headrace.model.progress import Driver

__all__ = ["command"]

_CLOCK_TOLERANCE_S = 5.0


@verb(
    "list",
    examples="""
    headrace flow list examples.shop:app
    headrace flow list examples.shop:app -b kafka:9092 --json
    """,
)
def list_flows(session: Session, app: AppName) -> None:
    """List an app's flows and their progress. The progress comes from the log, so the flows can run on any machine."""
    from headrace.cli.app_loader import load_checked_app

    loaded = load_checked_app(app)
    cluster = session.cluster_of(loaded)
    session.out.table([_row(cluster, flow) for flow in loaded.flows])


def _row(cluster: Cluster, flow: Flow) -> dict[str, Any]:
    from headrace.client.generations import progress_of
    from headrace.client.progress import flow_lag
    from headrace.model.declarations import DELIVERIES

    progress = progress_of(cluster, flow)
    last = progress.last if progress else None
    latency = progress.generation.latency if progress else flow.latency
    return {
        "flow": flow.name,
        "latency": latency,
        "delivery": DELIVERIES[latency],
        "generation": progress.generation.generation if progress else None,
        "batch": last.batch if last else None,
        "writes": progress.generation.output if progress else flow.writes.name,
        "rows_in": last.totals.rows_in if last else 0,
        "rows_out": last.totals.rows_out if last else 0,
        "lag": flow_lag(cluster, progress) if progress else None,
        "late": last.totals.late if last else 0,
        "dead": last.totals.dead + last.totals.table_dead if last else 0,
        "watermark_us": last.next_watermark_us if last else None,
        "committed_ms": last.committed_ms if last else None,
    }


@verb(
    "run",
    examples="""
    headrace flow run examples.shop:app -b kafka:9092
    headrace flow run examples.shop:app sum_revenue -b kafka:9092 --master spark://cluster:7077
    """,
)
def run(
    session: Session,
    app: AppName,
    flows: Annotated[
        list[str] | None, typer.Argument(metavar="FLOW", help="Names of flows (default: all flows).")
    ] = None,
    data: Data = None,
    master: Master = None,
    seconds: StopAfter = None,
) -> int:
    """Run an app's flows without its views, with a log that already runs.

    Only one driver at a time runs a flow. A second driver takes over the flow, and the first driver stops with an
    error.
    """
    from headrace.cli.run.app_run import RunOptions, run_app

    options = RunOptions(
        app,
        data=data,
        master=master,
        seconds=seconds,
        only=tuple(flows or ()),
        with_views=False,
        embedded=False,
    )
    return run_app(session, options)


@verb(
    "rebuild",
    examples="""
    headrace flow rebuild examples.shop:app sum_revenue
    headrace flow rebuild examples.shop:app enrich_orders --yes
    """,
)
def rebuild(
    session: Session,
    app: AppName,
    flows: Annotated[list[str], typer.Argument(metavar="FLOW", help="Names of flows.")],
    data: Data = None,
    yes: Yes = False,
) -> None:
    """Start a new generation of flows, and of all flows downstream of them.

    The new generation derives all rows again from the log. It writes to topics whose names end in the generation's
    number. The process that runs the flows derives it beside the serving generation. When it has caught up, and the
    difference is within the limits ([switch] in headrace.toml), the flow switches to it: readers of the flow's topic
    and of its views see the new rows. Otherwise it waits for headrace generation switch.
    """
    from headrace.cli.app_loader import load_checked_app
    from headrace.runtime.rebuild import flows_to_rebuild
    from headrace.runtime.rebuild import rebuild as start_generations

    loaded = load_checked_app(app)
    chosen = flows_to_rebuild(loaded, flows)
    cluster = session.cluster_of(loaded)
    for line in _running_drivers(cluster, chosen):
        session.out.note(line)
    names = ", ".join(flow.name for flow in chosen)
    session.out.note(f"new generation of {names}")
    confirm_start(f"derive the rows of {names} again", yes=yes)
    settings = session.settings()
    settings = dataclasses.replace(settings, data=data or settings.data)
    generations = start_generations(loaded, settings, cluster, flows, note=session.out.note)
    session.out.table(
        [
            {"flow": generation.flow, "generation": generation.generation, "writes": generation.output}
            for generation in generations
        ]
    )


def _running_drivers(cluster: Cluster, flows: list[Flow]) -> list[str]:
    """Say which processes run the flows, and what they do. A process on another machine may have ended."""
    from headrace.client.generations import serving_progress_topic
    from headrace.client.progress import current_driver

    names_by_driver: dict[tuple[str, int], list[str]] = {}
    for flow in flows:
        driver = current_driver(cluster, serving_progress_topic(cluster, flow))
        if driver is not None and (driver.host != socket.gethostname() or _is_running(driver)):
            names_by_driver.setdefault((driver.host, driver.pid), []).append(flow.name)
    lines = []
    for (host, pid), names in names_by_driver.items():
        is_here = host == socket.gethostname()
        runs = "runs" if is_here else "last ran"
        lines.append(
            f"process {pid} on {'this machine' if is_here else host} {runs} {', '.join(names)}: "
            + ("there," if is_here else "if it still runs,")
            + " it derives the new generation beside the serving one, and views keep serving the old rows meanwhile"
        )
    return lines


def _is_running(driver: Driver) -> bool:
    """Whether the process still runs. A process that started later has only the same id."""
    try:
        stat = Path(f"/proc/{driver.pid}/stat").read_text(encoding="ascii", errors="replace")
        uptime_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except OSError:
        return False
    age_s = uptime_s - int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s <= driver.opened_ms / 1_000 + _CLOCK_TOLERANCE_S


def command() -> CommandGroup:
    return command_group("flow", "List, run and rebuild an app's flows.", [list_flows, run, rebuild])
