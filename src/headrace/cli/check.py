"""``headrace check``: report all mistakes of an app, for continuous integration."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.errors import UsageError
from headrace.cli.options import AppName
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.model.errors import CollectedMistakes
    from headrace.model.schema_version import SchemaFile

__all__ = ["check", "command"]

_FILE = Path("schemas.json")
_FILE_BYTES_MAX = 64 * 1024 * 1024


@verb(
    "check",
    examples="""
    headrace check shop:app
    headrace check shop:app --schemas schemas.json
    headrace check shop:app --schemas schemas.json --write-schemas
    headrace check shop:app --log -b kafka:9092
    headrace check shop:app --json
    """,
    reference=[
        (
            "Exit codes",
            """
            0  the app has no mistakes
            1  mistakes; the output lists all of them
            """,
        )
    ],
)
def check(
    session: Session,
    app: AppName,
    schemas: Annotated[
        Path | None,
        typer.Option(
            "--schemas",
            metavar="FILE",
            help="Compare the schemas with those in this file, which is under version control (default: no file).",
        ),
    ] = None,
    write_schemas: Annotated[
        bool,
        typer.Option(
            "--write-schemas",
            help=f"Add the declared schemas to the file of --schemas (default: {_FILE}), if the app has no mistakes.",
        ),
    ] = False,
    log: Annotated[
        bool,
        typer.Option(
            "--log", help="Compare the schemas with the log too: recorded schemas, and a sample of records."
        ),
    ] = False,
    skip_flows: Annotated[
        bool,
        typer.Option("--skip-flows", help="Do not compile the flows, which starts Spark for some seconds."),
    ] = False,
) -> int:
    """Check an app without starting it, and report all mistakes: declarations, flows, schemas and the graph.

    It needs no broker. With --schemas it compares the schemas with a file of recorded schemas, so that CI refuses a
    change that older events do not fit. With --log it compares them with a log, as headrace run does before it starts
    anything. It writes nothing to the log.
    """
    from headrace.cli.app_loader import load_app
    from headrace.model.errors import collect_mistakes

    options = _Options(schemas or (_FILE if write_schemas else None), write_schemas, log, skip_flows)
    loaded: App | None = None
    mistakes: list[HeadraceError] = []
    with collect_mistakes() as collected:
        try:
            loaded = load_app(app)
        except HeadraceError as error:
            mistakes.append(error)
    mistakes = [*collected.mistakes, *mistakes]
    if loaded is not None:
        file = _read_file(options) if options.path else None
        mistakes += _mistakes(session, loaded, collected, file, options)
        if options.path and write_schemas and not mistakes:
            _write_file(session, loaded, file, options.path)
    _show(session, app, loaded, mistakes)
    return 1 if mistakes else 0


@dataclass(frozen=True, slots=True)
class _Options:
    path: Path | None
    """The file of recorded schemas."""
    write_schemas: bool
    log: bool
    skip_flows: bool


def _mistakes(
    session: Session, app: App, collected: CollectedMistakes, file: SchemaFile | None, options: _Options
) -> list[HeadraceError]:
    from headrace.runtime.check import compare_with_file, declaration_mistakes, log_mistakes

    mistakes: list[HeadraceError] = [*declaration_mistakes(app, collected.incomplete)]
    if app.flows and not options.skip_flows:
        lines = {getattr(mistake, "location", None) for mistake in mistakes} | collected.incomplete
        mistakes += _compile(session, app, lines - {None})
    if options.path is not None and file is not None:
        found = compare_with_file(app, file, str(options.path))
        # --write-schemas adds what the file lacks.
        mistakes += [
            item for item in found if not (options.write_schemas and item.code == "HR-CHECK-SCHEMAS")
        ]
    if options.log:
        mistakes += log_mistakes(app, session.cluster_of(app))
    return mistakes


def _compile(session: Session, app: App, lines: set[Any]) -> list[Any]:
    """Return the mistakes of the flows' functions. Flows with mistakes at the ``lines`` are left out."""
    from headrace.flow.spark.session import start, stop
    from headrace.runtime.check import compile_mistakes

    with tempfile.TemporaryDirectory(prefix="headrace-check-") as folder:
        settings = dataclasses.replace(session.settings(), data=Path(folder))
        try:
            spark = start(settings, f"{app.name} check", say=session.out.note)
        except HeadraceError as error:
            return [error]
        try:
            return compile_mistakes(app, spark, lines)
        finally:
            stop(spark)


def _read_file(options: _Options) -> SchemaFile | None:
    from headrace.model.schema_version import SchemaFile

    path = options.path
    assert path is not None
    try:
        with path.open("rb") as file:
            raw = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        if options.write_schemas:
            return None
        raise UsageError(
            f"{path} does not exist",
            hint=f"create it with headrace check APP --schemas {path} --write-schemas",
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > _FILE_BYTES_MAX:
        raise UsageError(f"{path} has more than {_FILE_BYTES_MAX} bytes")
    return SchemaFile.decode(raw, where=str(path))


def _write_file(session: Session, app: App, file: SchemaFile | None, path: Path) -> None:
    from headrace.runtime.check import updated_file

    written = updated_file(app, file).encode()
    try:
        path.write_bytes(written)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    session.out.note(f"wrote the schemas of app {app.name} to {path}")


def _show(session: Session, name: str, app: App | None, mistakes: list[HeadraceError]) -> None:
    from headrace.ops.graph import graph_of

    if session.out.as_json:
        graph = None if app is None or mistakes else graph_of(app).to_json()
        facts = [mistake.facts() for mistake in mistakes]
        session.out.json_line({"app": name, "ok": not mistakes, "mistakes": facts, "graph": graph})
        return
    for mistake in mistakes:
        session.out.text(str(mistake))
    if mistakes:
        session.out.text(f"{name} has {len(mistakes)} mistake{'s' * (len(mistakes) != 1)}")
    elif app is not None:
        counts = {
            "topic": len(app.topics),
            "flow": len(app.flows),
            "view": len(app.views) + len(app.computed),
        }
        listed = ", ".join(f"{count} {noun}{'s' * (count != 1)}" for noun, count in counts.items())
        session.out.text(f"{name} has no mistakes: {listed}")


def command() -> Command:
    return build(check)
