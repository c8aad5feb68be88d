"""``headrace init``: create a small app that runs, as a starting point."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.errors import CliError
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb

__all__ = ["InitRefused", "command", "init"]

_TEMPLATE = Path(__file__).with_name("template")
_FILES = {
    "app.py": "app.py.in",
    "conftest.py": "conftest.py.in",
    "test_app.py": "test_app.py.in",
    "headrace.toml": "headrace.toml.in",
    "README.md": "README.md.in",
    ".gitignore": "gitignore.in",
}


class InitRefused(CliError):
    code = "HR-CLI-INIT"


@verb(
    "init",
    examples="""
    headrace init shop
    headrace init
    """,
    shared=("quiet", "verbose"),
)
def init(
    session: Session,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder for the app; created if missing (default: the current folder).",
        ),
    ] = Path(),
) -> None:
    """Create a small app that runs.

    It writes app.py with a topic, a flow and a view, settings, tests, and a README with the next commands. It never
    overwrites a file.
    """
    folder = directory.absolute()
    name = re.sub(r"[^a-z0-9_-]+", "-", folder.name.lower()).strip("-_") or "app"
    existing = [file for file in _FILES if (folder / file).exists()]
    if existing:
        raise InitRefused(
            f"{', '.join(existing)} {'is' if len(existing) == 1 else 'are'} already in {folder}; nothing was written",
            hint="name another folder: headrace init DIR",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, source in _FILES.items():
            text = (_TEMPLATE / source).read_text(encoding="utf-8").replace("{{name}}", name)
            # Mode "x" fails if another process has created the file since the check.
            with open(folder / file, "x", encoding="utf-8") as created:
                created.write(text)
    except OSError as error:
        raise InitRefused(
            f"cannot write {error.filename or folder}: {error.strerror or error}",
            hint="name a folder that you can write to",
        ) from error
    session.out.note(f"created {', '.join(_FILES)} in {folder}")
    session.out.note("check this machine: headrace doctor")
    session.out.note(f"run it: {'' if folder == Path.cwd() else f'cd {directory} && '}headrace run app:app")


def command() -> Command:
    return build(init)
