"""The server, measured in one run on one machine: rows by key, fan-out, subscribers, and reading one's own writes.

    python -m bench.serve [--quick] [--rounds N] [--scale X] [--only PART ...] [--results DIR]

    points       rows by key over HTTP from each store, against the store's own driver and a bare server
    fan-out      a changing view to a thousand subscribers, against a limit and a bare broadcast
    subscribers  the cost of each subscriber, among a thousand against among ten
    own          how long a read waits for its client's own write, against a limit

The server is ``headrace serve`` as users start it: one process, with its access log. Clients are separate processes.
Headrace and a peer take turns. Figures are medians of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.serve import fan_out, own_writes, points, subscribers
from bench.serve.context import ServeContext, ServePlan
from bench.session import Session, parser

__all__ = ["PARTS", "main"]

PARTS: dict[str, Callable[[ServeContext], None]] = {
    "points": points.measure,
    "fan-out": fan_out.measure,
    "subscribers": subscribers.measure,
    "own": own_writes.measure,
}


def main() -> None:
    arguments = parser(__doc__, PARTS, "a small amount of every part, without Spark, as a smoke test")
    arguments.add_argument(
        "--scale", type=float, default=1.0, help="factor for the amount of work (default 1.0)"
    )
    options = arguments.parse_args()
    plan = ServePlan.quick() if options.quick else ServePlan.full(options.rounds, options.scale)
    session = Session("serve", options)
    with session.broker() as (server, home):
        context = ServeContext(plan, server, home)
        session.measure(context, {part: PARTS[part] for part in PARTS if part in (options.only or PARTS)})
