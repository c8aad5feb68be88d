"""The page, measured in Chromium: its weight, how soon it is there, what it costs, how fast it searches, if it grows.

    python -m bench.page [--quick] [--rounds N] [--messages N] [--soak SECONDS] [--only PART ...] [--results DIR]

    opening      bytes of the first load, and until something is painted and the graph is drawn
    updating     what scripts take of a second, at 20 updates per second, of 5 and of 300 parts
    listing      the list of a thousand topics
    searching    all messages of a topic, by text and by an expression, beside a bare consumer
    lasting      memory of the page and of its server, of a page that stays open

The server is ``headrace serve`` as its users start it. Figures are medians of the rounds; ``lasting`` has one.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.paging import lasting, listing, opening, searching, updating
from bench.paging.plan import PagePlan
from bench.paging.stand import PageStand
from bench.sitting import Sitting, parser
from headrace.client.cluster import Cluster
from tests.remote.chromium import browser

__all__ = ["PARTS", "main"]

PARTS: dict[str, Callable[[PageStand], None]] = {
    "opening": opening.measure,
    "updating": updating.measure,
    "searching": searching.measure,
    "lasting": lasting.measure,
    # Its topics are there from then on.
    "listing": listing.measure,
}


def main() -> None:
    asked = parser(__doc__, PARTS, "a little of all: does it run?")
    asked.add_argument("--messages", type=int, default=1_000_000, help="of the topic that is searched")
    asked.add_argument("--soak", type=float, default=3_600, help="how long a page stays open, in seconds")
    options = asked.parse_args()
    plan = (
        PagePlan.quick() if options.quick else PagePlan.full(options.rounds, options.messages, options.soak)
    )
    sitting = Sitting("page", options)
    with sitting.broker() as (server, home), browser() as found:
        stand = PageStand(plan, Cluster(server.bootstrap), found, home)
        sitting.measure(stand, {part: PARTS[part] for part in PARTS if part in (options.only or PARTS)})


if __name__ == "__main__":
    main()
