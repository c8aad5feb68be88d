"""``headrace config``: every setting, its value, and where that comes from."""

from __future__ import annotations

from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb

__all__ = ["command", "config"]


@verb(
    "config",
    examples="""
    headrace config
    headrace config --settings production.toml --json
    HEADRACE_SPARK__MASTER='local[4]' headrace config
    """,
    reference=[
        (
            "Where a value comes from, the first that has one",
            """
            1. an option of the command, e.g. --master or -b
            2. the environment: HEADRACE_<SECTION>__<NAME>, e.g. HEADRACE_FLOW__MAX_ROWS=50000
               (HEADRACE_BOOTSTRAP_SERVERS and KAFKA_BOOTSTRAP_SERVERS for log.bootstrap_servers)
            3. headrace.toml in the current folder, or the file that --settings names
            4. the default
            """,
        )
    ],
)
def config(session: Session) -> None:
    """Show every setting, its value, and where that comes from.

    Passwords and other secrets are masked.
    """
    session.out.table(
        [{"setting": one.key, "value": one.value, "origin": one.origin} for one in session.loaded.shown()]
    )


def command() -> Command:
    return build(config)
