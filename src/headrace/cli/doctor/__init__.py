"""``headrace doctor``: check what this machine lacks to run an app, and print how to fix it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Data
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb

if TYPE_CHECKING:
    from headrace.cli.doctor.finding import Finding
    from headrace.settings import Settings

__all__ = ["command", "doctor"]

_MARKS = {"ok": ("✓", "\x1b[32m"), "missing": ("✗", "\x1b[31m"), "optional": ("·", "\x1b[33m")}
_RESET = "\x1b[0m"


@verb(
    "doctor",
    examples="""
    headrace doctor
    headrace doctor shop:app
    headrace doctor --fix
    headrace doctor shop:app -b kafka:9092 --json
    """,
    reference=[
        (
            "Marks",
            """
            ✓  fine
            ✗  required, but missing; the exit code is then 1
            ·  optional: everything works without it
            """,
        )
    ],
)
def doctor(
    session: Session,
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:APP", help="Also check this app, and skip checks that it does not need."
        ),
    ] = None,
    data: Data = None,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Download the jars, and create the archive of Spark's classes."),
    ] = False,
) -> int:
    """Check what this machine lacks to run an app.

    It checks Python packages, Java, jars, the data directory, disk, memory, limits of the system, and the ports or the
    brokers. With an app it also checks the app's declarations and the stores of its views. For each problem it prints
    the next step. Without --fix it does not change the machine.
    """

    settings = session.settings(data=data)
    if fix:
        _fix(session, settings)
    findings = _findings(settings, app)
    _print_findings(session, findings)
    return 1 if any(finding.state == "missing" for finding in findings) else 0


def _findings(settings: Settings, name: str | None) -> list[Finding]:
    from headrace.cli.doctor.app import check_app, check_stores
    from headrace.cli.doctor.machine import (
        check_data_dir,
        check_limits,
        check_log,
        check_python,
        check_server,
    )
    from headrace.cli.doctor.spark import check_spark

    app, app_findings = (None, []) if name is None else check_app(name)
    findings = [*check_python()]
    if app is None or app.flows:
        findings += check_spark(settings)
    findings += [*check_data_dir(settings), *check_limits(), *check_log(settings), *check_server(settings)]
    findings += app_findings
    if app is not None:
        findings += check_stores(app, settings)
    return findings


def _fix(session: Session, settings: Settings) -> None:
    from headrace.errors import HeadraceError
    from headrace.flow.spark.training_run import train

    try:
        train(settings, say=session.out.note)
    except HeadraceError as error:
        # The checks that follow report what is still missing.
        session.out.warn(f"{error.message}{f': {error.detail}' if error.detail else ''}")


def _print_findings(session: Session, findings: list[Finding]) -> None:
    from headrace.cli.output import uses_colour

    coloured = uses_colour(sys.stdout)
    for finding in findings:
        if session.out.as_json:
            session.out.json_line(asdict(finding))
            continue
        mark, colour = _MARKS[finding.state]
        session.out.text(f"{colour}{mark}{_RESET} {finding.text}" if coloured else f"{mark} {finding.text}")
        if finding.hint:
            is_missing = finding.state == "missing"
            session.out.text(f"    next step: {finding.hint}" if is_missing else f"    {finding.hint}")
    absent = sum(finding.state == "missing" for finding in findings)
    if not session.out.as_json:
        session.out.text("")
        session.out.text(f"{absent} missing" if absent else "nothing is missing")


def command() -> Command:
    return build(doctor)
