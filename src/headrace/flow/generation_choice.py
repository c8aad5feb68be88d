"""Which generation of a flow a process derives: one that its function began.

A process has one function per flow, and only that function can derive a generation that it began. So after a change of
the function, the process derives the new generation, and the serving one rests until a process with the old function
runs again, or until the switch.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

from headrace.client.cluster import Cluster
from headrace.client.generations import generations_of, transactional_id_of
from headrace.client.generations_writer import GenerationsWriter, drop_generation
from headrace.client.progress import current, current_driver
from headrace.client.transactional_writer import TransactionalWriter
from headrace.flow.context import FlowContext
from headrace.flow.errors import InputReplaced
from headrace.flow.ownership import expect_owner
from headrace.flow.upstream import find_upstream, why_unreadable
from headrace.model.generations import (
    Entry,
    FlowGenerations,
    GenerationRead,
    GenerationServes,
    GenerationUnknown,
)
from headrace.model.progress import Driver
from headrace.processes import is_running

__all__ = [
    "begin_generation",
    "choose_generation",
    "derivable",
    "first_entry",
    "generation_to_deploy",
    "has_certainly_ended",
    "may_derive_beside",
    "needs_new_generation",
    "resting_entry",
    "resting_line",
    "upstream_being_built",
]

Note = Callable[[str], None]
_OPEN_MS = 60_000


def choose_generation(context: FlowContext) -> Entry:
    """Return the generation to derive: the serving one if the function began it, else the newest that it began.

    Prefer a generation whose inputs can still be read. Without one, or if the function began none, return the serving
    generation. Opening that one raises the error.
    """
    generations = generations_of(context.cluster, context.flow)
    if generations is None:
        return first_entry(context)
    entries = derivable(context, generations)
    readable = [entry for entry in entries if _has_readable_inputs(context, entry)]
    return (readable or entries or [generations.serving_entry])[0]


def _has_readable_inputs(context: FlowContext, entry: Entry) -> bool:
    """Whether no flow upstream has switched to a generation whose rows this generation does not read."""
    progress = current(context.cluster, entry.progress)
    logs = {source.topic: source.log for source in progress.generation.inputs} if progress else {}
    generations = generations_of(context.cluster, context.flow)
    is_kept = generations is not None and generations.has_served(entry.number)
    for topic in context.flow.reads:
        upstream = find_upstream(context.cluster, context.app, topic) if topic.name in logs else None
        if upstream is None:
            continue
        error = why_unreadable(context.flow, topic, logs[topic.name], upstream, is_kept=is_kept)
        if isinstance(error, InputReplaced):
            return False
    return True


def derivable(context: FlowContext, generations: FlowGenerations) -> list[Entry]:
    """Return the generations that the function began: the serving one first, then the newest first."""
    mine = [entry for entry in generations.entries if entry.fingerprint == context.compiled.fingerprint]
    return sorted(mine, key=lambda entry: (entry.number != generations.serving, -entry.number))


def resting_entry(generations: FlowGenerations, fingerprint: str) -> Entry | None:
    """Return the serving generation if a process with this function derives another one but cannot derive this one."""
    entry = generations.serving_entry
    others = [other for other in generations.entries if other.fingerprint == fingerprint]
    return entry if others and entry.fingerprint != fingerprint else None


def resting_line(context: FlowContext) -> str:
    """Return a line about a serving generation that rests; empty if it does not."""
    generations = generations_of(context.cluster, context.flow)
    resting = resting_entry(generations, context.compiled.fingerprint) if generations is not None else None
    if generations is None or resting is None:
        return ""
    if generations.building is None or generations.building.fingerprint != context.compiled.fingerprint:
        return (
            f"flow {context.flow.name}: generation {resting.number} serves, but this process has the code of an earlier"
            f" one; generation {resting.number} rests unless another process has its code"
        )
    return (
        f"flow {context.flow.name}: generation {resting.number} serves, but rests until the switch and afterwards,"
        " because this process has only the new function; headrace deploy keeps it deriving, in the process with the"
        " old code"
    )


def needs_new_generation(context: FlowContext) -> bool:
    """Whether the serving generation is not of this function, or a flow that writes an input is being rebuilt, or
    switched and no generation of this function reads the new rows.
    """
    generations = generations_of(context.cluster, context.flow)
    if generations is None:
        return True
    progress = current(context.cluster, generations.serving_entry.progress)
    is_same = (
        generations.serving_entry.fingerprint == context.compiled.fingerprint
        and progress is not None
        and progress.generation.latency == context.flow.latency
    )
    if not is_same or upstream_being_built(context):
        return True
    return not any(_has_readable_inputs(context, entry) for entry in derivable(context, generations))


def generation_to_deploy(context: FlowContext, note: Note) -> int | None:
    """Return the generation of the flow that a deployment derives: 0 for a new one, None for none.

    It derives a generation of this function that an earlier deployment began, because that one may have died. The
    process with the old code does not derive a generation that has switched. So if the process that did has died before
    the app was started with the new code, the deployment derives that one.
    """
    generations = generations_of(context.cluster, context.flow)
    if generations is None:
        return 0
    building = generations.building
    is_mine = building is not None and building.fingerprint == context.compiled.fingerprint
    if (
        building is not None
        and is_mine
        and building.is_deployed
        and _has_readable_inputs(context, building)
        and not upstream_being_built(context)
    ):
        return building.number
    if needs_new_generation(context):
        return 0
    serving = generations.serving_entry
    driver = current_driver(context.cluster, serving.progress) if generations.kept else None
    if driver is None:
        return None
    if has_certainly_ended(driver):
        return serving.number
    note(
        f"flow {context.flow.name} has switched to the new code; process {driver.pid} on host {driver.host} derives its"
        " rows; if that process has ended, start the app with the new code"
    )
    return None


def may_derive_beside(cluster: Cluster, generations: FlowGenerations, entry: Entry, now_ms: int) -> bool:
    """Whether an app may derive a generation beside another one of the same function.

    Until it serves, a generation that was deployed is derived by the process that deploys it, as long as that lives. It
    needs a moment to open the generation.
    """
    if not entry.is_deployed or entry.number == generations.serving:
        return True
    driver = current_driver(cluster, entry.progress) if cluster.topic(entry.progress) is not None else None
    if driver is None:
        return now_ms - entry.begun_ms > _OPEN_MS
    return has_certainly_ended(driver)


def has_certainly_ended(driver: Driver) -> bool:
    """A process on another host may still run. In a container, an earlier process can have had this process's pid."""
    return driver.host == socket.gethostname() and (driver.pid == os.getpid() or not is_running(driver.pid))


def upstream_being_built(context: FlowContext) -> str:
    """Return why the flow needs a new generation, if a flow that writes one of its inputs is being rebuilt and no
    generation of this flow reads the new rows. Else return an empty text.
    """
    cluster, flow = context.cluster, context.flow
    generations = generations_of(cluster, flow)
    if generations is None:
        return ""
    read = set()
    for entry in derivable(context, generations):
        progress = current(cluster, entry.progress)
        if progress is not None:
            read |= {source.log for source in progress.generation.inputs}
    for topic in flow.reads:
        writer = context.app.writer_of(topic)
        upstream = generations_of(cluster, writer) if writer is not None else None
        building = upstream.building if upstream is not None else None
        if upstream is not None and building is not None and building.topic not in read:
            return f"flow {upstream.flow} is building generation {building.number}"
    return ""


def first_entry(context: FlowContext) -> Entry:
    flow = context.flow
    return Entry(
        1, flow.progress_topic, flow.writes.name, context.compiled.fingerprint, "first start", begun_ms=0
    )


def _drop_superseded(context: FlowContext, before: FlowGenerations) -> None:
    """Drop the generations that were being built. They would never switch, because a newer one replaces them."""
    for entry in before.entries:
        if before.role(entry.number) in ("building", "superseded"):
            with contextlib.suppress(GenerationRead, GenerationServes, GenerationUnknown):
                drop_generation(context.cluster, context.app, context.flow, entry.number)


def begin_generation(context: FlowContext, reason: str, *, is_deployed: bool = False) -> Entry:
    """Record a new generation of the flow, which its driver then builds beside the serving one.

    A real-time flow has no position at which one generation could replace another. So its new generation replaces the
    old one at once: followers build their views from it, and serve the old rows until then.
    """
    cluster, flow = context.cluster, context.flow
    expect_owner(cluster, context.app, flow)
    with GenerationsWriter(cluster, flow) as writer:
        before = writer.read()
        progress = current(cluster, before.serving_entry.progress)
        at_once = flow.is_realtime or (progress is not None and progress.generation.latency == "realtime")
        entry = writer.begin_generation(
            context.compiled.fingerprint, reason, is_served_at_once=at_once, is_deployed=is_deployed
        )
    if not at_once:
        _drop_superseded(context, before)
    if at_once:
        for old in before.entries:
            # Fence the old driver. It finds that its generation was dropped, and ends.
            TransactionalWriter(cluster, transactional_id_of(flow, old), f"flow {flow.name}").close()
    return entry
