"""``headrace verify``: what is served, held against what follows from the log."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import CliError, UsageError
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.cli.view.options import AppName, Data

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.client.cluster import Cluster
    from headrace.model.flow import Flow
    from headrace.model.view import View
    from headrace.ops.errors import CannotVerify
    from headrace.ops.report import Report
    from headrace.ops.verify import Verifier
    from headrace.settings import Settings

__all__ = ["command", "verify"]

EXIT_CANNOT_VERIFY = 7
_WORST_FIRST = (1, EXIT_CANNOT_VERIFY, 6, 0)
_SLOW_S = 2.0
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
            0  proven: every row that is served follows from the log, and none is missing
            1  not as derived: rows, the position or the version of the function differ, and are named
            6  unprovable in part: input was deleted or compacted away; the rest is proven
            7  cannot be verified: the view is not built yet, the flow has not begun, the store cannot be read
            """,
        )
    ],
)
def verify(
    session: Session,
    app: AppName,
    views: Annotated[list[str] | None, typer.Argument(metavar="VIEW", help="Which views.")] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Every view, and the topic of every flow; the same as naming none."),
    ] = False,
    flows: Annotated[
        list[str] | None,
        typer.Option("--flow", metavar="NAME", help="The topic of this flow; may be repeated."),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            "--sample-differences", metavar="N", min=0, help="Show so many differences, and count all."
        ),
    ] = 10,
    every: Annotated[
        float | None,
        typer.Option("--every", metavar="SECONDS", min=1, help="Again and again, until Ctrl-C."),
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="Show the last results, without a new one.")] = False,
    data: Data = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark's master; otherwise this machine.")
    ] = None,
) -> int:
    """Prove that views hold what follows from the log, while everything keeps running.

    A view of a flow is derived again in batch, with the flow's own function, through the batch that it has reached, and
    compared row by row; a view of any other topic is the fold of that topic. Results are kept in topic headrace.verify.
    """
    from headrace.cli.reach import check_reachable
    from headrace.cli.settings import cluster_of, settings_for
    from headrace.cli.view.options import checked_app, views_of

    if everything and (views or flows):
        raise UsageError("--all is everything, and some are named", hint="use one of them")
    if last and every is not None:
        raise UsageError("--last shows what was, and --every looks again", hint="use one of them")
    loaded = checked_app(app)
    chosen = None
    if views or flows:
        chosen = (views_of(loaded, views) if views else [], _flows_of(loaded, flows or ()))
    check_reachable(session.bootstrap)
    cluster = cluster_of(session)
    if last:
        from headrace.ops.results import last_results

        wanted = None if chosen is None else {one.name for part in chosen for one in part}
        return _show_last(
            session,
            [one for one in last_results(cluster, loaded.name) if wanted is None or one.name in wanted],
        )
    settings = settings_for(session, data=data, master=master)
    with (
        _Progress(session) as progress,
        _verifier(loaded, cluster, settings, chosen, sample, progress.say) as verifier,
    ):
        return _rounds(session, verifier, chosen, every, progress)


def _flows_of(app: App, names: Sequence[str]) -> list[Flow]:
    known = {flow.name: flow for flow in app.flows}
    for name in names:
        if name not in known:
            raise FlowUnknown(
                f"app {app.name} has no flow {name!r}", hint=f"it has {', '.join(known) or 'none'}"
            )
    return [known[name] for name in dict.fromkeys(names)]


Chosen = tuple["list[View]", "list[Flow]"]


@contextlib.contextmanager
def _verifier(
    app: App,
    cluster: Cluster,
    settings: Settings,
    chosen: Chosen | None,
    sample: int,
    say: Callable[[str], None],
) -> Iterator[Verifier]:
    """With a Spark of its own, unless nothing is asked that needs one."""
    from headrace.ops.verify import Verifier

    views, flows = chosen if chosen is not None else (app.views, app.flows)
    if not flows and not any(app.writer_of(view.topic) for view in views):
        with Verifier(None, cluster, app, settings, (), {}, sample=sample, say=say) as verifier:
            yield verifier
        return
    from headrace.flow.compiling import compile_app
    from headrace.flow.session import start, stop

    say("starting Spark")
    # Beside that of a running app, whose files are in use.
    spark = start(dataclasses.replace(settings, data=settings.data / "verify"), f"{app.name} verify", say=say)
    try:
        compiled, schemas = compile_app(spark, app)
        with Verifier(spark, cluster, app, settings, compiled, schemas, sample=sample, say=say) as verifier:
            yield verifier
    finally:
        stop(spark)


def _rounds(
    session: Session, verifier: Verifier, chosen: Chosen | None, every: float | None, progress: _Progress
) -> int:
    from headrace.cli.stopping import Stopping

    if every is None:
        return _round(session, verifier, chosen, progress)
    with Stopping() as stopping:
        while not stopping.asked:
            began = time.monotonic()
            code = _round(session, verifier, chosen, progress)
            while not stopping.asked and time.monotonic() - began < every:
                time.sleep(_POLL_S)
    return code


def _round(session: Session, verifier: Verifier, chosen: Chosen | None, progress: _Progress) -> int:
    codes = [0]
    for result in _results(verifier, chosen):
        progress.done()
        codes.append(_show(session, result))
    session.out.flush()
    return next(code for code in _WORST_FIRST if code in codes)


def _results(verifier: Verifier, chosen: Chosen | None) -> Iterator[Report | CannotVerify]:
    if chosen is None:
        yield from verifier.all()
        return
    views, flows = chosen
    for view in views:
        yield verifier.tried(lambda view=view: verifier.view(view))  # type: ignore[misc]
    for flow in flows:
        yield verifier.tried(lambda flow=flow: verifier.flow(flow))  # type: ignore[misc]


def _show(session: Session, result: Report | CannotVerify) -> int:
    from headrace.cli.verb import report as tell_error
    from headrace.ops.errors import CannotVerify

    if isinstance(result, CannotVerify):
        tell_error(result, as_json=session.out.as_json, verbose=session.verbose)
        return EXIT_CANNOT_VERIFY
    if session.out.as_json:
        session.out.json_line(result)
    else:
        for line in [result.line()] if result.proven and not session.verbose else result.lines():
            session.out.text(line)
    session.out.flush()
    return result.exit_code


def _show_last(session: Session, found: list[Report]) -> int:
    from headrace.ops.errors import NeverVerified

    if not found:
        raise_as = NeverVerified(
            "nothing of it was ever verified", hint="headrace verify APP --all does it now"
        )
        return _show(session, raise_as)
    codes = [_show(session, one) for one in found]
    return next(code for code in _WORST_FIRST if code in codes)


class _Progress:
    """What is being done, once it takes longer than a moment."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._line = ""
        self._began = time.monotonic()
        self._timer: threading.Timer | None = None

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.done()

    def say(self, line: str) -> None:
        with self._lock:
            if time.monotonic() - self._began >= _SLOW_S:
                self._session.out.note(line)
                return
            self._line = line
            if self._timer is None:
                self._timer = threading.Timer(_SLOW_S, self._late)
                self._timer.daemon = True
                self._timer.start()

    def _late(self) -> None:
        with self._lock:
            if self._line:
                self._session.out.note(self._line)
            self._line = ""

    def done(self) -> None:
        """A result is there; what comes next has a moment of its own."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._line, self._began = None, "", time.monotonic()


def command() -> Command:
    return build(verify)
