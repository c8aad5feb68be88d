"""``headrace deploy``: derive what an app's new code changes, in a second process, without a pause."""

from __future__ import annotations

from headrace.cli.options import AppName, Data, Master, StopAfter
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb

__all__ = ["command"]


@verb(
    "deploy",
    examples="""
    headrace deploy shop:app
    headrace deploy shop:app -b kafka:9092 --master spark://cluster:7077
    headrace deploy shop:app --for 600
    """,
)
def deploy(
    session: Session,
    app: AppName,
    data: Data = None,
    master: Master = None,
    seconds: StopAfter = None,
) -> int:
    """Bring changed flows into a running app.

    The running process keeps the log, the server and the old flows. This command derives new generations of the flows
    that changed, and of all flows downstream, beside the old ones. Each flow switches when its new generation has
    caught up, within the limits of [switch] in headrace.toml.

    Then restart the app with the new code. It takes the flows over from this command, which ends.
    """
    from headrace.cli.run.app_run import RunOptions, run_app

    options = RunOptions(
        app, data=data, master=master, seconds=seconds, with_views=False, embedded=False, changed_only=True
    )
    return run_app(session, options)


def command() -> Command:
    return build(deploy)
