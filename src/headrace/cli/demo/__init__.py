"""``headrace demo``: a broker, real traffic through a stock Kafka client, and a live look at both.

Everything that is shown is asked of the broker as any client would; everything in the summary is counted by the demo's
own ledger, which knows what was acknowledged and what each group has read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb

__all__ = ["command", "demo"]


@verb(
    "demo",
    shared=("as_json", "quiet", "verbose"),
    examples="""
    headrace demo
    headrace demo --for 20
    headrace demo --rate 20000 --data ./headrace-data
    """,
)
def demo(
    session: Session,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", help="Stop by itself; otherwise with Ctrl-C.", min=1),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", "-d", metavar="DIR", help="Keep the broker's data here; otherwise it is thrown away."
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where the broker listens.")
    ] = "127.0.0.1:0",
    rate: Annotated[
        int,
        typer.Option("--rate", metavar="N", help="Records per second, over all topics.", min=10, max=200_000),
    ] = 3_000,
) -> None:
    """Run a broker with live traffic and watch it.

    A producer writes orders, clicks and payments. A group of two members keeps up with them; another one is slow on
    purpose, so that there is a lag to see. At the end everything that was acknowledged must have been read back by
    both groups, or the demo fails.
    """
    from headrace.cli.demo.show import run_demo

    run_demo(session, seconds=seconds, data=data, listen=listen, rate=rate)


def command() -> Command:
    return build(demo)
