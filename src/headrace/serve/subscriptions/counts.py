"""What is counted of subscriptions, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headrace.broker.exposition import Exposition
from headrace.serve.subscriptions.feed import Feed
from headrace.serve.subscriptions.message import Message

__all__ = ["SubscriptionCounts"]


class SubscriptionCounts:
    """In one event loop."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        """By what carries them."""
        self.ended: Counter[str] = Counter()
        """By the code of the last message; ``gone`` for those who went by themselves."""
        self.resumes: Counter[str] = Counter()
        self.resets: Counter[str] = Counter()
        self._messages: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()

    def sent(self, carrier: str, one: Message) -> None:
        self._messages[carrier, one.kind] += 1
        self._bytes[carrier] += len(one.data)

    def page(self, out: Exposition, subscribers: Counter[str], feeds: Iterable[Feed]) -> None:
        family = "headrace_subscribers"
        out.family(family, "gauge", "Who follows, by what carries it.")
        for carrier in ("websocket", "events"):
            out.sample(family, {"carrier": carrier}, subscribers[carrier])
        for name, label, text, counter in (
            ("begun", "carrier", "Subscriptions that began.", self.begun),
            ("ended", "why", "Subscriptions that ended, by why.", self.ended),
            ("resumes", "outcome", "Cursors that were sent, by what came of them.", self.resumes),
            ("resets", "why", "Snapshots in the middle of a subscription.", self.resets),
            ("sent_bytes", "carrier", "Bytes of messages.", self._bytes),
        ):
            family = f"headrace_subscription_{name}_total"
            out.family(family, "counter", text)
            for value, count in sorted(counter.items()):
                out.sample(family, {label: value}, count)
        family = "headrace_subscription_messages_total"
        out.family(family, "counter", "Messages that were sent.")
        for (carrier, kind_of), count in sorted(self._messages.items()):
            out.sample(family, {"carrier": carrier, "type": kind_of}, count)
        known = [*feeds]
        for name, kind, text, values in (
            ("followers", "gauge", "Who follows the view.", [len(one.followers) for one in known]),
            ("queries", "gauge", "Distinct queries that are followed.", [one.lenses for one in known]),
            ("steps", "gauge", "Batches, or pieces, since it is followed.", [one.steps for one in known]),
            (
                "history_bytes",
                "gauge",
                "What is remembered for those who are behind.",
                [one.history.size_bytes for one in known],
            ),
            ("troubled", "gauge", "Whether nothing can be read now.", [bool(one.trouble) for one in known]),
        ):
            family = f"headrace_subscribed_view_{name}"
            out.family(family, kind, text)
            for feed, amount in zip(known, values, strict=True):
                out.sample(family, {"view": feed.source.view.name}, int(amount))
