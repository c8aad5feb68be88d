"""``headrace doctor``: what is missing on this machine, and how to get it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb

if TYPE_CHECKING:
    from headrace.cli.doctor.finding import Finding
    from headrace.settings import Settings

__all__ = ["command", "doctor"]

_MARKS = {"ok": ("✓", "\x1b[32m"), "missing": ("✗", "\x1b[31m"), "optional": ("·", "\x1b[33m")}
_OFF = "\x1b[0m"


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
            ✓  there, and in order
            ✗  needed, and missing; the exit code is then 1
            ·  could be better; nothing fails for it
            """,
        )
    ],
)
def doctor(
    session: Session,
    app: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", help="Look at this app as well, and only at what it needs."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", metavar="DIR", help="Where the log, state and views are kept."),
    ] = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Get what can be had without asking: jars, and Spark's classes in advance."
        ),
    ] = False,
) -> int:
    """Say what is missing on this machine, and how to get it.

    Python packages, Java, jars, the port or the brokers, the data directory, disk and memory; with an app also its
    mistakes and the stores of its views. Nothing is started or changed, but by --fix.
    """
    from headrace.cli.settings import settings_for

    settings = settings_for(session, data=data)
    if fix:
        _fix(session, settings)
    findings = _findings(settings, app)
    _show(session, findings)
    return 1 if any(one.state == "missing" for one in findings) else 0


def _findings(settings: Settings, name: str | None) -> list[Finding]:
    from headrace.cli.doctor.app import load_for_a_look, look_at_stores
    from headrace.cli.doctor.machine import look_at_data, look_at_log, look_at_python
    from headrace.cli.doctor.spark import look_at_spark

    loaded, told = (None, []) if name is None else load_for_a_look(name)
    findings = [*look_at_python()]
    if loaded is None or loaded.flows:
        findings += look_at_spark(settings)
    findings += [*look_at_data(settings), *look_at_log(settings), *told]
    if loaded is not None:
        findings += look_at_stores(loaded, settings)
    return findings


def _fix(session: Session, settings: Settings) -> None:
    from headrace.errors import HeadraceError
    from headrace.flow.training import train

    try:
        train(settings, say=session.out.note)
    except HeadraceError as error:
        # The look that follows says what is still missing, and how to get it.
        session.out.warn(f"{error.message}{f': {error.detail}' if error.detail else ''}")


def _show(session: Session, findings: list[Finding]) -> None:
    from headrace.cli.output import colour_wanted

    coloured = colour_wanted(sys.stdout)
    for one in findings:
        if session.out.as_json:
            session.out.json_line(
                {"check": one.check, "state": one.state, "text": one.text, "hint": one.hint}
            )
            continue
        mark, colour = _MARKS[one.state]
        session.out.text(f"{colour}{mark}{_OFF} {one.text}" if coloured else f"{mark} {one.text}")
        if one.hint:
            session.out.text(f"    next step: {one.hint}" if one.state == "missing" else f"    {one.hint}")
    absent = sum(one.state == "missing" for one in findings)
    if not session.out.as_json:
        session.out.text("")
        session.out.text(f"{absent} missing" if absent else "all that is needed is there")


def command() -> Command:
    return build(doctor)
