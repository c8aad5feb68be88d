"""Starts a broker for a fault run: ``python -m bench.faults.starter [OPTIONS] -- broker …``.

The broker is the product's own, read from the same command line. The options set what that line cannot, or take one
protection out, so that the oracle can show that it notices:

    --journal-snapshot BYTES     how much a journal grows before it replaces its past by a snapshot
    --session-min MS             the shortest session that a group's member may ask for
    --chdir DIRECTORY            where the broker runs: what a relative path would be relative to
    --without PROTECTION         see ``bench.faults.unprotected``
"""

from __future__ import annotations

import argparse
import functools
import os
import sys

from bench.faults import unprotected

__all__ = ["main"]


def main(words: list[str]) -> int:
    at = words.index("--")
    parser = argparse.ArgumentParser(prog="bench.faults.starter")
    parser.add_argument("--journal-snapshot", type=int)
    parser.add_argument("--session-min", type=int)
    parser.add_argument("--chdir")
    parser.add_argument("--without", choices=sorted(unprotected.PROTECTIONS), action="append", default=[])
    options = parser.parse_args(words[:at])

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
        vars(broker_main)["Broker"] = functools.partial(Broker, groups=groups)
    if options.chdir is not None:
        os.chdir(options.chdir)
    for name in options.without:
        unprotected.PROTECTIONS[name]()

    from headrace.cli import main as cli_main

    sys.argv = ["headrace", *words[at + 1 :]]
    return cli_main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
