"""``headrace init``: a small app that runs, to change into one's own."""

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
        Path, typer.Argument(metavar="DIR", help="Where to; made if missing. Without it, the current folder.")
    ] = Path(),
) -> None:
    """Make a small app that runs.

    A topic, a flow and a view in app.py; its settings, a test, and a README with the commands to go on with. No file
    that is there is overwritten.
    """
    folder = directory.absolute()
    name = re.sub(r"[^a-z0-9_-]+", "-", folder.name.lower()).strip("-_") or "app"
    there = [file for file in _FILES if (folder / file).exists()]
    if there:
        raise InitRefused(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} already in {folder}; nothing was written",
            hint="name another folder: headrace init DIR",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, source in _FILES.items():
            text = (_TEMPLATE / source).read_text(encoding="utf-8").replace("{{name}}", name)
            # "x": what somebody else has written meanwhile is not overwritten either.
            with open(folder / file, "x", encoding="utf-8") as made:
                made.write(text)
    except OSError as error:
        raise InitRefused(
            f"{error.filename or folder} cannot be written: {error.strerror or error}",
            hint="name a folder that you may write to",
        ) from error
    session.out.note(f"made {', '.join(_FILES)} in {folder}")
    session.out.note(f"run it: {'' if folder == Path.cwd() else f'cd {directory} && '}headrace run app:app")


def command() -> Command:
    return build(init)
