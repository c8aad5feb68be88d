"""Where a command answers besides HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["PgListen"]

PgListen = Annotated[
    str | None,
    typer.Option(
        "--pg-listen",
        metavar="HOST:PORT",
        help="Answer in PostgreSQL's protocol there too, for reading: psql, BI tools. Tokens are the passwords.",
    ),
]
