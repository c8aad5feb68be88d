"""``headrace verify``: compare views with the rows that their flows derive from the log."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import CliError, UsageError
from headrace.cli.options import AppName, Data, Master
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.client.cluster import Cluster
    from headrace.model.declarations import Flow, View
    from headrace.ops.verify.errors import CannotVerify
    from headrace.ops.verify.report import Report
    from headrace.ops.verify.verifier import Verifier
    from headrace.settings import Settings

__all__ = ["command", "estimate_left_s", "verify"]

Selection = tuple["list[View]", "list[Flow]"]
Item = tuple[str, str]
"""``view`` or ``flow``, and its name."""

EXIT_CANNOT_VERIFY = 7
_CODES_BY_SEVERITY = (1, EXIT_CANNOT_VERIFY, 6, 0)
_SLOW_S = 2.0
_REPEAT_S = 5.0
_POLL_S = 0.1


class FlowUnknown(CliError):
    code = "HR-CLI-FLOW-UNKNOWN"


@verb(
    "verify",
    examples="""
    headrace verify examples.shop:app --all
    headrace verify examples.shop:app revenue --sample-differences 50
    headrace verify examples.shop:app --flow enrich_orders
    headrace verify examples.shop:app --all --every 3600 --json >> proofs.jsonl
    headrace verify examples.shop:app --last
    """,
    reference=[
        (
            "Exit codes",
            """
            0  proven: every row of the view follows from the log, and no row is missing
            1  not as derived: rows, the position or the function's version differ; the output lists the differences
            6  unprovable in part: some input was deleted or compacted away; the rest is proven
            7  cannot be verified: the view is not built yet, the flow has not started, or the store cannot be read
            """,
        )
    ],
)
def verify(
    session: Session,
    app: AppName,
    views: Annotated[list[str] | None, typer.Argument(metavar="VIEW", help="Names of views.")] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Verify every view, and the topic of every flow (the default)."),
    ] = False,
    flows: Annotated[
        list[str] | None,
        typer.Option("--flow", metavar="NAME", help="Verify the topic of this flow; may be repeated."),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            "--sample-differences",
            metavar="N",
            min=0,
            help="Maximum number of differences to show; all are counted.",
        ),
    ] = 10,
    every: Annotated[
        float | None,
        typer.Option(
            "--every", metavar="SECONDS", min=1, help="Verify at this interval until Ctrl-C (default: once)."
        ),
    ] = None,
    last: Annotated[
        bool,
        typer.Option(
            "--last",
            help="Show the last results without verifying again.",
        ),
    ] = False,
    data: Data = None,
    master: Master = None,
) -> int:
    """Prove that views match the log, while the app runs.

    For a view of a flow's topic, it derives all rows again with the flow's function, up to the view's last batch. Then
    it compares the rows. For a view of any other topic, it compares the rows with the last value of each key. The
    results are stored in the topic headrace.verify.
    """
    from headrace.cli.app_loader import load_checked_app, views_of

    if everything and (views or flows):
        raise UsageError("--all cannot be combined with names of views or --flow", hint="use one of them")
    if last and every is not None:
        raise UsageError("--last and --every cannot be combined", hint="use one of them")
    loaded = load_checked_app(app)
    chosen = None
    if views or flows:
        chosen = (views_of(loaded, views) if views else [], _flows_of(loaded, flows or ()))
    cluster = session.cluster_of(loaded)
    if last:
        from headrace.ops.verify.report import last_reports

        wanted = None if chosen is None else {item.name for items in chosen for item in items}
        reports = last_reports(cluster, loaded.name)
        shown = [report for report in reports if wanted is None or report.name in wanted]
        return _show_last(session, cluster, loaded, shown)
    settings = session.settings(data=data, master=master)
    planned = _planned(loaded, chosen)
    with (
        _Progress(session, planned, lambda: _last_durations(cluster, loaded.name)) as progress,
        _verifier(loaded, cluster, settings, chosen, sample, progress.note) as verifier,
    ):
        return _verify_repeatedly(session, verifier, chosen, every, progress)


def _planned(app: App, chosen: Selection | None) -> list[Item]:
    """Return what will be verified, in this order."""
    from headrace.model.graph import order

    if chosen is not None:
        views, flows = chosen
        return [*(("view", view.name) for view in views), *(("flow", flow.name) for flow in flows)]
    planned = [("view", view.name) for view in app.views if app.writer_of(view.topic) is None]
    for flow in order(app):
        planned += [("view", view.name) for view in app.views if app.writer_of(view.topic) is flow]
        planned.append(("flow", flow.name))
    return planned


def _last_durations(cluster: Cluster, app: str) -> dict[Item, float]:
    from headrace.ops.verify.report import last_reports

    try:
        return {(report.what, report.name): report.seconds for report in last_reports(cluster, app)}
    except HeadraceError:
        return {}  # The verification itself reports that the log does not respond.


def _flows_of(app: App, names: Sequence[str]) -> list[Flow]:
    known = {flow.name: flow for flow in app.flows}
    for name in names:
        if name not in known:
            raise FlowUnknown(
                f"app {app.name} has no flow {name!r}", hint=f"flows of the app: {', '.join(known) or 'none'}"
            )
    return [known[name] for name in dict.fromkeys(names)]


@contextlib.contextmanager
def _verifier(
    app: App,
    cluster: Cluster,
    settings: Settings,
    chosen: Selection | None,
    sample: int,
    say: Callable[[str], None],
) -> Iterator[Verifier]:
    """Create a verifier. It gets its own Spark session, unless no flow is involved."""
    from headrace.ops.verify.verifier import Verifier

    views, flows = chosen if chosen is not None else (app.views, app.flows)
    if not flows and not any(app.writer_of(view.topic) for view in views):
        with Verifier(None, cluster, app, settings, (), {}, sample=sample, say=say) as verifier:
            yield verifier
        return
    from headrace.flow.compile.compiler import compile_app
    from headrace.flow.spark.session import start, stop

    say("starting Spark")
    # Use a separate folder, because a running app uses the files of Spark's usual folder.
    spark = start(dataclasses.replace(settings, data=settings.data / "verify"), f"{app.name} verify", say=say)
    try:
        compiled, schemas = compile_app(spark, app)
        with Verifier(spark, cluster, app, settings, compiled, schemas, sample=sample, say=say) as verifier:
            yield verifier
    finally:
        stop(spark)


def _verify_repeatedly(
    session: Session, verifier: Verifier, chosen: Selection | None, every: float | None, progress: _Progress
) -> int:
    from headrace.cli.interrupt import Interrupt

    if every is None:
        return _verify_once(session, verifier, chosen, progress)
    with Interrupt() as interrupt:
        while not interrupt.requested:
            started_s = time.monotonic()
            code = _verify_once(session, verifier, chosen, progress)
            while not interrupt.requested and time.monotonic() - started_s < every:
                time.sleep(_POLL_S)
    return code


def _verify_once(session: Session, verifier: Verifier, chosen: Selection | None, progress: _Progress) -> int:
    codes = [0]
    progress.begin()
    for result in _results(verifier, chosen):
        progress.done(result)
        codes.append(_show(session, result))
    session.out.flush()
    return next(code for code in _CODES_BY_SEVERITY if code in codes)


def _results(verifier: Verifier, chosen: Selection | None) -> Iterator[Report | CannotVerify]:
    if chosen is None:
        yield from verifier.all()
        return
    views, flows = chosen
    for view in views:
        yield verifier.attempt(lambda view=view: verifier.view(view))  # type: ignore[misc]
    for flow in flows:
        yield verifier.attempt(lambda flow=flow: verifier.flow(flow))  # type: ignore[misc]


def _show(session: Session, result: Report | CannotVerify) -> int:
    from headrace.cli.verb import report as report_error
    from headrace.ops.verify.errors import CannotVerify

    if isinstance(result, CannotVerify):
        report_error(result, as_json=session.out.as_json, verbose=session.verbose)
        return EXIT_CANNOT_VERIFY
    if session.out.as_json:
        session.out.json_line(result)
    else:
        for line in result.lines() if session.verbose else result.short_lines():
            session.out.text(line)
    session.out.flush()
    return result.exit_code


def _show_last(session: Session, cluster: Cluster, app: App, reports: list[Report]) -> int:
    """Show the last results. A result of other rows than those that are served now is outdated: it proves nothing."""
    from headrace.ops.verify.errors import NeverVerified, Outdated
    from headrace.ops.verify.outdated import OutdatedProofs

    if not reports:
        error = NeverVerified("no verification has run yet", hint="run: headrace verify APP --all")
        return _show(session, error)
    codes, proofs = [], OutdatedProofs(cluster, app)
    for report in reports:
        outdated = proofs.line(report)
        codes.append(_show(session, Outdated(outdated) if outdated else report))
    return next(code for code in _CODES_BY_SEVERITY if code in codes)


class _Progress:
    """Prints notes about the work in progress if it takes longer than two seconds, and again every five seconds.

    ``planned`` names the views and flows to verify. The time left is estimated from the durations of their last
    verifications, which ``last_s`` returns by name.
    """

    def __init__(
        self,
        session: Session,
        planned: Sequence[Item],
        last_s: Callable[[], Mapping[Item, float]],
    ) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._planned = planned
        self._remaining = list(planned)
        self._last_s = last_s
        self._seconds: dict[Item, float] | None = None
        self._line = ""
        self._began = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="progress", daemon=True)

    def __enter__(self) -> _Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def begin(self) -> None:
        """Call this before all planned views and flows are verified, possibly again."""
        with self._lock:
            self._remaining, self._began = list(self._planned), time.monotonic()

    def note(self, line: str) -> None:
        with self._lock:
            self._line = line
            if time.monotonic() - self._began >= _SLOW_S:
                self._print()

    def done(self, result: Report | CannotVerify) -> None:
        """Call this when a result is ready. The two seconds start again for the next result."""
        from headrace.ops.verify.report import Report

        with self._lock:
            item = (result.what, result.name) if isinstance(result, Report) else None
            if item in self._remaining:
                self._remaining.remove(item)
                assert isinstance(result, Report)
                self._durations()[item] = result.seconds
            elif self._remaining:
                self._remaining.pop(0)
            self._line, self._began = "", time.monotonic()

    def _repeat(self) -> None:
        while not self._stopped.wait(_SLOW_S if self._is_new() else _REPEAT_S):
            with self._lock:
                if self._line and time.monotonic() - self._began >= _SLOW_S:
                    self._print()

    def _is_new(self) -> bool:
        return time.monotonic() - self._began < _SLOW_S

    def _print(self) -> None:
        elapsed_s = time.monotonic() - self._began
        count = len(self._planned)
        number = f"{count - len(self._remaining) + 1} of {count}, " if count > 1 else ""
        left_s = estimate_left_s(self._remaining, self._durations(), elapsed_s)
        left = "" if left_s is None else f", about {max(1, round(left_s))} s left"
        self._session.out.note(f"{number}{self._line} ({elapsed_s:.0f} s{left})")

    def _durations(self) -> dict[Item, float]:
        """Read the last durations when they are first needed, because most verifications end before."""
        if self._seconds is None:
            self._seconds = dict(self._last_s())
        return self._seconds


def estimate_left_s(
    remaining: Sequence[Item], last_s: Mapping[Item, float], elapsed_s: float
) -> float | None:
    """Estimate how long the remaining verifications take. The first one has run for ``elapsed_s``. An item without a
    known duration takes as long as the average of the others. None if no duration is known, or the first item already
    takes longer than expected and is the last one.
    """
    if not last_s or not remaining:
        return None
    average_s = sum(last_s.values()) / len(last_s)
    first_s, *others_s = (last_s.get(item, average_s) for item in remaining)
    left_s = max(0.0, first_s - elapsed_s) + sum(others_s)
    return left_s or None


def command() -> Command:
    return build(verify)
