"""Starts a broker for a fault run: ``python -m faults.servers.broker_starter [OPTIONS] -- broker …``.

The broker is Headrace's own. The arguments after ``--`` are the command line of ``headrace``. The options set what the
command line cannot, or remove one protection, so that the oracle can show that it detects the difference:

    --journal-snapshot BYTES     how much a journal grows before a snapshot replaces its older entries
    --session-min MS             the shortest session timeout that a group member may request
    --chdir DIRECTORY            the broker's working directory, to which relative paths refer
    --without PROTECTION         see ``faults.unprotected.registry``
"""

from __future__ import annotations

import argparse
import functools
import os
import sys

from faults.patch import patch
from faults.unprotected import registry

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    at = arguments.index("--")
    parser = argparse.ArgumentParser(prog="faults.servers.broker_starter")
    parser.add_argument("--journal-snapshot", type=int)
    parser.add_argument("--session-min", type=int)
    parser.add_argument("--chdir")
    parser.add_argument("--without", choices=sorted(registry.PROTECTIONS), action="append", default=[])
    options = parser.parse_args(arguments[:at])

    from headrace.broker import main as broker_main
    from headrace.broker.broker import Broker
    from headrace.broker.groups import GroupSettings
    from headrace.log.journal import Journal

    if options.journal_snapshot is not None:
        defaults = Journal.__init__.__kwdefaults__ or {}
        assert "snapshot_after_bytes" in defaults
        defaults["snapshot_after_bytes"] = options.journal_snapshot
    if options.session_min is not None:
        groups = GroupSettings(session_timeout_ms_min=options.session_min)
        patch(broker_main, "Broker", functools.partial(Broker, groups=groups))
    if options.chdir is not None:
        os.chdir(options.chdir)
    for name in options.without:
        registry.PROTECTIONS[name]()

    from headrace.cli import main as cli_main

    sys.argv = ["headrace", *arguments[at + 1 :]]
    return cli_main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
