"""``headrace config``: show every setting, its value and its origin."""

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
            "Origins of a value, in order of precedence",
            """
            1. an option of the command, e.g. --master or -b
            2. the environment: HEADRACE_<SECTION>__<NAME>, e.g. HEADRACE_FLOW__MAX_ROWS=50000
               (HEADRACE_BOOTSTRAP_SERVERS and KAFKA_BOOTSTRAP_SERVERS for log.bootstrap_servers)
            3. headrace.toml in the current folder, or the file of --settings
            4. the default
            """,
        )
    ],
)
def config(session: Session) -> None:
    """Show every setting, its value and its origin.

    Passwords and other secrets are masked.
    """
    session.out.table(
        [
            {"setting": setting.key, "value": setting.value, "origin": setting.origin}
            for setting in session.loaded.shown()
        ]
    )


def command() -> Command:
    return build(config)
