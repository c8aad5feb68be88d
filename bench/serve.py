"""The server, measured in one run on one machine: rows by key, fan-out, subscribers, and reading one's own writes.

    python -m bench.serve [--quick] [--rounds N] [--scale X] [--only PART ...] [--results DIR]

    points       rows by key over HTTP, from each store, beside the store's own driver and a bare server
    fan-out      a view that changes all the time, to a thousand, beside a limit and a bare broadcast
    subscribers  what each costs, a thousand beside ten
    own          how long a read waits for what its caller has written, beside a limit

The server is ``headrace serve`` as its users start it, one process, which is one worker, with its access log; those who
ask it are processes of their own. Ours and a peer take turns. Figures are medians of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.serving import fan_out, own, points, subscribers
from bench.serving.plan import ServePlan
from bench.serving.stand import ServeStand
from bench.sitting import Sitting, parser

__all__ = ["PARTS", "main"]

PARTS: dict[str, Callable[[ServeStand], None]] = {
    "points": points.measure,
    "fan-out": fan_out.measure,
    "subscribers": subscribers.measure,
    "own": own.measure,
}


def main() -> None:
    asked = parser(__doc__, PARTS, "a little of all, without Spark: does it run?")
    asked.add_argument("--scale", type=float, default=1.0, help="how much of the usual work")
    options = asked.parse_args()
    plan = ServePlan.quick() if options.quick else ServePlan.full(options.rounds, options.scale)
    sitting = Sitting("serve", options)
    with sitting.broker() as (server, home):
        stand = ServeStand(plan, server, home)
        sitting.measure(stand, {part: PARTS[part] for part in PARTS if part in (options.only or PARTS)})


if __name__ == "__main__":
    main()
