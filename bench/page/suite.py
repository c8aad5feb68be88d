"""The page, measured in Chromium: size, load time, CPU, search speed, and memory growth.

    python -m bench.page [--quick] [--rounds N] [--messages N] [--soak SECONDS] [--only PART ...] [--results DIR]

    opening      bytes of the first load, and time to the first paint and to the drawn graph
    updating     script time per second at 20 updates per second, with 5 and with 300 parts
    listing      time to draw the list of a thousand topics
    searching    speed of a search of all messages of a topic, by text and by expression, against a bare consumer
    lasting      memory of a page that stays open, and of its server

The server is ``headrace serve`` as users start it. Figures are medians of the rounds; ``lasting`` has one round.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.page import endurance, first_load, topics, update_cost
from bench.page.context import PageContext, PagePlan
from bench.session import Session, parser
from faults.serve.chromium import browser
from headrace.client.cluster import Cluster

__all__ = ["PARTS", "main"]

PARTS: dict[str, Callable[[PageContext], None]] = {
    "opening": first_load.measure,
    "updating": update_cost.measure,
    "searching": topics.measure_search,
    "lasting": endurance.measure,
    # This part is last, because its thousand topics remain.
    "listing": topics.measure_list,
}


def main() -> None:
    arguments = parser(__doc__, PARTS, "a small amount of every part, as a smoke test")
    arguments.add_argument(
        "--messages", type=int, default=1_000_000, help="messages in the searched topic (default 1,000,000)"
    )
    arguments.add_argument(
        "--soak", type=float, default=3_600, help="seconds that a page stays open (default 3,600)"
    )
    options = arguments.parse_args()
    plan = (
        PagePlan.quick() if options.quick else PagePlan.full(options.rounds, options.messages, options.soak)
    )
    session = Session("page", options)
    with session.broker() as (server, home), browser() as chromium:
        context = PageContext(plan, Cluster(server.bootstrap), chromium, home)
        session.measure(context, {part: PARTS[part] for part in PARTS if part in (options.only or PARTS)})
