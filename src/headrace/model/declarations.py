"""The declared parts of an app: topics, flows, views and alerts.

``headrace.app.App`` creates them. All other code reads them through the protocol ``Declared``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol

from headrace.model.codec.codec import decode_record, encode_record
from headrace.model.errors import SourceLocation
from headrace.model.schema import Schema
from headrace.model.store import Store
from headrace.model.upcast import Upcaster

__all__ = [
    "DELIVERIES",
    "LATENCIES",
    "LATE_MODES",
    "SCHEMAS_PREFIX",
    "Alert",
    "Declared",
    "Flow",
    "LateMode",
    "LatePolicy",
    "Latency",
    "OwnNames",
    "Topic",
    "View",
    "alerts_topic",
    "is_declared",
    "next_watermark",
    "schemas_topic",
    "source_topics",
    "writer_of",
]


@dataclass(frozen=True, slots=True)
class LatePolicy:
    """Defines when an event of a topic is late: if its time is more than ``allowed`` before the newest event time of
    the earlier records of its partition.

    So lateness is a fact about the record, which does not depend on batches or on other partitions. Every flow, every
    rebuild and ``verify`` find the same late events.
    """

    time: str
    """The name of the field with the event time."""
    allowed: timedelta
    """How far behind the newest event time of its partition an event may arrive."""

    @property
    def allowed_us(self) -> int:
        return self.allowed // timedelta(microseconds=1)


def next_watermark(policies: Mapping[str, LatePolicy], seen_us: Mapping[str, int]) -> int | None:
    """Return the lowest watermark of the inputs with a late policy; None until each of them has had an event.

    ``seen_us`` has the event time that each input has reached.
    """
    if not policies or not policies.keys() <= seen_us.keys():
        return None
    return min(seen_us[name] - policy.allowed_us for name, policy in policies.items())


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and the schema, key and event time of its values.

    ``kind`` is ``events``, where every record counts, or ``table``, where only the last row of each key counts.
    """

    name: str
    schema: Schema | None
    """None if the flow that writes the topic defines the schema."""
    key: tuple[str, ...]
    time: str | None = None
    late: timedelta = timedelta(0)
    kind: Literal["events", "table"] = "events"
    partitions: int | None = None
    """None uses the setting ``topics.partitions``."""
    location: SourceLocation | None = field(default=None, compare=False)
    upcast: Upcaster | None = None
    """Converts older values to the schema; None if no value needs it."""
    of: str | None = None
    """The app that owns the topic; None if it is this app."""

    @property
    def late_policy(self) -> LatePolicy | None:
        """None if the topic has no event time. Then its events are never late."""
        return None if self.time is None else LatePolicy(self.time, self.late)

    def encode(self, value: Any) -> tuple[bytes | None, bytes]:
        """Return key and value of the record. The key is None if the topic has no key."""
        return encode_record(self, value)

    def decode(self, value: bytes) -> dict[str, Any]:
        """Return the fields of a record's value, after the topic's upcasters. Raises ``ValueDoesNotFit``."""
        return decode_record(self, value)


Latency = Literal["batch", "realtime"]
LATENCIES: tuple[Latency, ...] = ("batch", "realtime")
DELIVERIES: dict[Latency, str] = {"batch": "exactly once", "realtime": "at least once"}
"""How often each row occurs in the output topic."""
SCHEMAS_PREFIX = "headrace.schemas."
LateMode = Literal["keep", "drop", "side"]
"""What a flow does with late events. ``keep``: the function gets them. ``drop``: it does not, and the flow records
their locations. ``side``: it does not, and the flow writes the records to its topic of late events.
"""
LATE_MODES: tuple[LateMode, ...] = ("keep", "drop", "side")


@dataclass(slots=True)
class OwnNames:
    """The names of the topics that Headrace creates for the flows and views of an app."""

    app: str = ""
    earlier: set[str] = field(default_factory=set)
    """The flows and views whose topics an earlier release created. The names of these topics do not contain the app's
    name.
    """

    def topic(self, part: str, suffix: str) -> str:
        return f"{self.app}.{part}.{suffix}" if self.app and part not in self.earlier else f"{part}.{suffix}"


@dataclass(frozen=True, slots=True)
class Flow:
    """A plain function of DataFrames that derives one topic from others. The flow is callable like the function.

    The function's arguments are the topics in ``reads``, in that order.
    """

    name: str
    function: Callable[..., Any]
    reads: tuple[Topic, ...]
    writes: Topic
    deterministic: bool = False
    """Whether the user declares the flow's Python functions deterministic."""
    unbounded: bool = False
    """Whether the user accepts that the flow's state grows without limit with the number of keys."""
    latency: Latency = "batch"
    """``realtime``: each row is written alone, within milliseconds, at least once instead of exactly once."""
    version: str = ""
    """The user sets another version after a change that the fingerprint cannot detect."""
    late: LateMode | None = None
    """None: ``drop`` if the function keeps state by event time, otherwise ``keep``."""
    location: SourceLocation | None = field(default=None, compare=False)
    own_names: OwnNames = field(default_factory=lambda: OwnNames(), compare=False)

    def __call__(self, *frames: Any) -> Any:
        return self.function(*frames)

    @property
    def is_realtime(self) -> bool:
        return self.latency == "realtime"

    @property
    def streams(self) -> tuple[Topic, ...]:
        return tuple(topic for topic in self.reads if topic.kind == "events")

    @property
    def tables(self) -> tuple[Topic, ...]:
        return tuple(topic for topic in self.reads if topic.kind == "table")

    @property
    def late_policies(self) -> dict[str, LatePolicy]:
        """Late policies by input topic. Empty for a real-time flow, which keeps all events."""
        if self.is_realtime:
            return {}
        policies = {topic.name: topic.late_policy for topic in self.streams}
        return {name: policy for name, policy in policies.items() if policy is not None}

    @property
    def progress_topic(self) -> str:
        """The progress topic of the first generation."""
        return self.own_names.topic(self.name, "progress")

    @property
    def late_topic(self) -> str:
        return self.own_names.topic(self.name, "late")

    @property
    def dead_topic(self) -> str:
        return self.own_names.topic(self.name, "dead")


@dataclass(frozen=True, slots=True)
class View:
    """The last row of each key of a topic, held in a store that follows the topic, or computed on read."""

    name: str
    topic: Topic
    key: tuple[str, ...]
    store: Store
    location: SourceLocation | None = field(default=None, compare=False)
    cached: int = 0
    """How many responses a server caches. A cached response is valid until the view changes."""
    own_names: OwnNames = field(default_factory=lambda: OwnNames(), compare=False)

    @property
    def dead_topic(self) -> str:
        return self.own_names.topic(self.name, "dead")


@dataclass(frozen=True, slots=True)
class Alert:
    """A named rule that Headrace evaluates while the app runs."""

    name: str
    when: str
    """The rule, in the grammar of ``headrace.model.rule``."""
    on: str = ""
    """The flows, views or groups that the rule watches, if ``when`` does not name them."""
    location: SourceLocation | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        return f"{self.when} on {self.on}" if self.on else self.when


def alerts_topic(app: str) -> str:
    return f"{app}.alerts"


def schemas_topic(app: str) -> str:
    """Return the topic in which the schemas of an app's topics are recorded."""
    return f"{SCHEMAS_PREFIX}{app}"


class Declared(Protocol):
    """An app: its declarations, in the order in which they were declared."""

    @property
    def name(self) -> str: ...
    @property
    def location(self) -> SourceLocation: ...
    @property
    def topics(self) -> Sequence[Topic]: ...
    @property
    def flows(self) -> Sequence[Flow]: ...
    @property
    def views(self) -> Sequence[View]: ...
    @property
    def computed(self) -> Sequence[View]: ...
    @property
    def alerts(self) -> Sequence[Alert]: ...


def is_declared(app: Declared, topic: Topic) -> bool:
    """Compare by identity, because a topic of another app can be equal."""
    return any(declared is topic for declared in app.topics)


def writer_of(app: Declared, topic: Topic) -> Flow | None:
    """Return the flow that derives the topic; None if no flow of the app writes it."""
    return next((flow for flow in app.flows if flow.writes is topic), None)


def source_topics(app: Declared) -> list[Topic]:
    """Return the topics with a schema that no flow of the app writes. A rebuild does not derive their records again."""
    return [topic for topic in app.topics if topic.schema is not None and writer_of(app, topic) is None]
