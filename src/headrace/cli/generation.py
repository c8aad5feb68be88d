"""``headrace generation``: list, compare, switch and drop the generations of an app's flows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.errors import NotConfirmed
from headrace.cli.options import AppName, Yes
from headrace.cli.session import Session
from headrace.cli.verb import CommandGroup, command_group, verb
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.client.cluster import Cluster
    from headrace.flow.switch.report import SwitchReport
    from headrace.model.declarations import Flow
    from headrace.model.generations import Entry, FlowGenerations

__all__ = ["command", "switch_flow_back"]

FlowName = Annotated[str, typer.Argument(metavar="FLOW", help="The name of the flow.")]
Number = Annotated[int, typer.Argument(metavar="GENERATION", help="The number of the generation.")]


@verb(
    "list",
    examples="""
    headrace generation list examples.shop:app
    headrace generation list examples.shop:app --json
    """,
    reference=[
        (
            "Columns",
            """
            ROLE     serving: readers see its rows; building: derived beside the serving one; kept: it served before
            WRITES   the topics to which it writes its rows
            BEHIND   records that it has yet to read
            REASON   why it was begun
            """,
        ),
    ],
)
def list_generations(session: Session, app: AppName) -> None:
    """List the generations of an app's flows."""
    from headrace.cli.app_loader import load_checked_app
    from headrace.client.generations import generations_of

    loaded = load_checked_app(app)
    cluster = session.cluster_of(loaded)
    rows: list[dict[str, Any]] = []
    for flow in loaded.flows:
        generations = generations_of(cluster, flow)
        entries = () if generations is None else generations.entries
        rows += [_row(cluster, flow, generations, entry) for entry in entries if generations is not None]
    session.out.table(rows)


def _row(cluster: Cluster, flow: Flow, generations: FlowGenerations, entry: Entry) -> dict[str, Any]:
    from headrace.client.generations import progress_of
    from headrace.client.progress import flow_lag

    progress = progress_of(cluster, flow, entry.number)
    last = progress.last if progress else None
    topics = [entry.topic]
    if generations.writes_stable(entry.number) and entry.topic != generations.stable:
        topics.append(generations.stable)
    return {
        "flow": flow.name,
        "generation": entry.number,
        "role": generations.role(entry.number),
        "writes": ", ".join(topics),
        "batch": last.batch if last else None,
        "behind": flow_lag(cluster, progress) if progress else None,
        "rows_out": last.totals.rows_out if last else 0,
        "late": last.totals.late if last else 0,
        "dead": last.totals.dead + last.totals.table_dead if last else 0,
        "begun_ms": entry.begun_ms or (progress.generation.started_ms if progress else None),
        "reason": entry.reason,
    }


@verb(
    "compare",
    examples="""
    headrace generation compare examples.shop:app sum_revenue 2
    headrace generation compare examples.shop:app sum_revenue 2 --json
    headrace generation compare examples.shop:app sum_revenue
    """,
)
def compare(
    session: Session,
    app: AppName,
    flow: FlowName,
    generation: Annotated[
        int,
        typer.Argument(
            metavar="[GENERATION]",
            help="The number of the generation; none for the report of the last switch.",
        ),
    ] = 0,
) -> None:
    """Compare the rows of a generation with those that readers of the flow's topic see.

    It prints the numbers of rows and of keys, how many keys are gone, changed and new, the shares of late and dead
    records, and a few examples of each. Without GENERATION, it prints the report of the flow's last switch.
    """
    from headrace.client.generations import generations_of
    from headrace.flow.switch.comparison import Comparison
    from headrace.model.generations import GenerationUnknown

    loaded, declared = _flow(app, flow)
    cluster = session.cluster_of(loaded)
    generations = generations_of(cluster, declared)
    if generations is None:
        raise GenerationUnknown(flow, generation, ())
    if not generation:
        _print_report(session, _last_report(generations))
        return
    with Comparison(cluster, declared, generations.expect(generation)) as comparison:
        report = comparison.with_samples(comparison.report(generations))
    _print_report(session, report)


def _last_report(generations: FlowGenerations) -> SwitchReport:
    from headrace.flow.switch.operation import SwitchRefused
    from headrace.flow.switch.report import SwitchReport

    recorded = generations.switches[-1].report if generations.switches else None
    if recorded is None:
        raise SwitchRefused(
            f"flow {generations.flow} has no report of its last switch",
            detail="it has not switched, or the difference of its last switch is not published yet",
            hint="headrace generation compare MODULE:APP FLOW GENERATION compares a generation now",
        )
    return SwitchReport.from_json(recorded)


def _print_report(session: Session, report: SwitchReport) -> None:
    session.out.note(report.line())
    if session.out.as_json:
        session.out.table([report.to_json()])
        return
    session.out.table(
        [
            {"difference": sample.kind, "key": sample.key, "before": sample.before, "after": sample.after}
            for sample in report.samples
        ]
    )


@verb(
    "switch",
    examples="""
    headrace generation switch examples.shop:app sum_revenue 2
    headrace generation switch examples.shop:app sum_revenue 1 --yes
    headrace generation switch examples.shop:app sum_revenue 1 --behind --yes
    """,
)
def switch(
    session: Session,
    app: AppName,
    flow: FlowName,
    generation: Number,
    behind: Annotated[
        bool, typer.Option("--behind", help="Also if it has read less than the generation that serves.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Let another generation serve, whatever the difference is. The present one is kept, as the way back.

    Flows downstream that have a generation of the new rows switch first. Nothing is switched unless all of them can
    switch now. The difference is published to the flow's topic, in one transaction.
    """
    from headrace.flow.switch.operation import expect_ready, switch_now

    loaded, declared = _flow(app, flow)
    cluster = session.cluster_of(loaded)
    steps = _downstream_first(cluster, loaded, declared, generation)
    names = ", ".join(f"{each.name} to generation {number}" for each, number in steps)
    for each, number in steps:
        expect_ready(cluster, each, number, accepts_behind=behind)
    session.out.note(f"switch {names}")
    _confirm("switch?", yes=yes)
    for each, number in steps:
        report = switch_now(cluster, each, number, accepts_behind=behind)
        _print_report(session, report)
    for each, number in steps:
        _warn_of_other_rows(session, cluster, loaded, each, number)


def _downstream_first(cluster: Cluster, app: App, flow: Flow, number: int) -> list[tuple[Flow, int]]:
    """Return the flow, after all flows downstream that have a generation of these rows and serve other ones."""
    steps: list[tuple[Flow, int]] = []
    for reader in _readers(cluster, app, flow, number):
        if reader.reads_it(reader.generations.serving):
            continue
        readable = [entry.number for entry in reader.generations.entries if reader.reads_it(entry.number)]
        if readable:
            steps += _downstream_first(cluster, app, reader.flow, max(readable))
    return [*dict.fromkeys(steps), (flow, number)]


def _warn_of_other_rows(session: Session, cluster: Cluster, app: App, flow: Flow, number: int) -> None:
    """Warn of each flow downstream that still reads rows of another generation than the one that serves now."""
    from headrace.app_argument import app_argument

    for reader in _readers(cluster, app, flow, number):
        if not reader.reads_it(reader.generations.serving):
            session.out.warn(
                f"flow {reader.flow.name} does not read the rows of generation {number} of flow {flow.name}; rebuild"
                f" it: headrace flow rebuild {app_argument()} {reader.flow.name}"
            )


@verb(
    "drop",
    examples="""
    headrace generation drop examples.shop:app sum_revenue 1
    headrace generation drop examples.shop:app sum_revenue 1 --yes
    """,
)
def drop(session: Session, app: AppName, flow: FlowName, generation: Number, yes: Yes = False) -> None:
    """Delete a generation that does not serve, with its topics and its parts of views. It can never serve again."""
    from headrace.client.generations_writer import drop_generation, expect_droppable

    loaded, declared = _flow(app, flow)
    cluster = session.cluster_of(loaded)
    expect_droppable(cluster, loaded, declared, generation)
    _confirm(f"delete generation {generation} of flow {flow}?", yes=yes)
    drop_generation(cluster, loaded, declared, generation)
    session.out.table([{"flow": flow, "dropped": generation}])


def switch_flow_back(session: Session, app: App, flow: Flow, *, behind: bool) -> list[dict[str, Any]]:
    """Let the generation serve again that served last, after those of all flows downstream that read its rows.

    Refuse, before anything is changed, if a flow downstream would still read rows of the present generation. Returns a
    row for the user per flow.
    """
    from headrace.cli.errors import SwitchRefused
    from headrace.client.generations import generations_of
    from headrace.flow.switch.operation import publish, switch_back

    cluster = session.cluster_of(app)
    generations = generations_of(cluster, flow)
    kept = sorted(generations.kept, key=lambda entry: entry.kept_ms) if generations is not None else []
    if generations is None or not kept:
        raise SwitchRefused(
            f"flow {flow.name} has no kept generation to switch back to",
            hint="headrace generation list APP shows the generations",
        )
    rows: list[dict[str, Any]] = []
    steps = _back_steps(cluster, app, flow, kept[-1].number)
    for each, number in steps:
        before = generations_of(cluster, each)
        try:
            switch_back(cluster, each, number, accepts_behind=behind)
        except HeadraceError:
            for row in rows:
                session.out.warn(f"flow {row['flow']} has already switched to generation {row['now']}")
            raise
        session.out.note(f"flow {each.name}: generation {number} serves; publishing the difference")
        rows.append({"flow": each.name, "before": before.serving if before else None, "now": number})
    for row, (each, _) in zip(rows, steps, strict=True):
        report = publish(cluster, each)
        counts = report.counts if report is not None else None
        row["published_keys"] = counts.gone + counts.changed + counts.new if counts else 0
    return rows


def _back_steps(cluster: Cluster, app: App, flow: Flow, number: int) -> list[tuple[Flow, int]]:
    """Return the flow, after all flows downstream that must switch back with it. Raise if one of them cannot."""
    from headrace.app_argument import app_argument
    from headrace.cli.errors import SwitchRefused

    steps: list[tuple[Flow, int]] = []
    for reader in _readers(cluster, app, flow, number):
        if reader.reads_it(reader.generations.serving):
            continue
        kept = [entry for entry in reader.generations.kept if reader.reads_it(entry.number)]
        if not kept:
            name = reader.flow.name
            raise SwitchRefused(
                f"flow {name} has no generation of the rows of generation {number} of flow {flow.name}, so it would"
                " still read those of another one",
                detail="nothing was changed",
                hint=f"switch flow {flow.name} alone, then rebuild flow {name}:"
                f" headrace generation switch {app_argument()} {flow.name} {number};"
                f" headrace flow rebuild {app_argument()} {name}",
            )
        newest = max(kept, key=lambda entry: entry.kept_ms)
        steps += _back_steps(cluster, app, reader.flow, newest.number)
    return [*dict.fromkeys(steps), (flow, number)]


@dataclass(frozen=True)
class _Reader:
    """A flow that reads the topic of another flow."""

    flow: Flow
    generations: FlowGenerations
    logs: Mapping[int, Collection[str]]
    """The topics that each generation reads."""
    topic: str
    """The topic of one generation of the other flow."""

    def reads_it(self, number: int) -> bool:
        return self.topic in self.logs[number]


def _readers(cluster: Cluster, app: App, flow: Flow, number: int) -> Iterator[_Reader]:
    """Yield the flows downstream that have started. ``number`` is a generation of ``flow``."""
    from headrace.client.generations import generations_of, progress_of
    from headrace.model.generations import GenerationUnknown

    generations = generations_of(cluster, flow)
    if generations is None:
        raise GenerationUnknown(flow.name, number, ())
    topic = generations.expect(number).topic
    for reader in app.flows:
        found = generations_of(cluster, reader) if flow.writes in reader.reads else None
        if found is None:
            continue
        logs = {}
        for entry in found.entries:
            progress = progress_of(cluster, reader, entry.number)
            logs[entry.number] = [source.log for source in progress.generation.inputs] if progress else []
        yield _Reader(reader, found, logs, topic)


def _flow(app: str, name: str) -> tuple[App, Flow]:
    from headrace.cli.app_loader import load_checked_app
    from headrace.runtime.rebuild import flow_named

    loaded = load_checked_app(app)
    return loaded, flow_named(loaded, name)


def _confirm(question: str, *, yes: bool) -> None:
    if not yes and not typer.confirm(question, err=True):
        raise NotConfirmed("nothing was changed", hint="pass --yes to confirm")


def command() -> CommandGroup:
    return command_group(
        "generation",
        "List, compare, switch and drop the generations of flows.",
        [list_generations, compare, switch, drop],
    )
