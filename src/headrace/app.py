"""An app collects the user's declarations. A declaration does nothing else; ``headrace run`` acts on it.

app = App("shop")
orders = app.topic("orders", Order, key="order_id", time="at", late=timedelta(seconds=30))
products = app.table("products", Product, key="product_id")

@app.flow(reads=[orders, products], writes=app.topic("sales", key="order_id", time="at"))
def price(orders, products): ...

app.view("sales", price.writes, store=SQLite())
app.alert("backlog", "lag > 10_000 for 30s", on=price)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from headrace.model.declarations import (
    LATE_MODES,
    LATENCIES,
    Alert,
    Flow,
    LateMode,
    Latency,
    OwnNames,
    Topic,
    View,
)
from headrace.model.errors import (
    AppError,
    SchemaError,
    SourceLocation,
    caller,
    location_of,
    raise_or_collect,
)
from headrace.model.schema import Schema, schema_of
from headrace.model.store import OnRead, SQLite, Store
from headrace.model.upcast import Upcast, Upcaster

__all__ = ["App"]

_CACHED_MAX = 100_000


class App:
    """Each declaration checks its own arguments. ``headrace.model.graph`` checks the app as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.location = caller()
        self.topics: list[Topic] = []
        self.flows: list[Flow] = []
        self.views: list[View] = []
        self.computed: list[View] = []
        """Views with ``OnRead()``: they have no store, and a server computes them on read."""
        self.alerts: list[Alert] = []
        self.own_names = OwnNames(name)

    def topic(
        self,
        name: str,
        schema: type | None = None,
        *,
        key: str | Sequence[str] = (),
        time: str | None = None,
        late: timedelta = timedelta(0),
        partitions: int | None = None,
        upcast: Upcast | Sequence[Upcast] = (),
        of: str | None = None,
    ) -> Topic:
        """Declare a topic of events. Without ``schema``, the flow that writes the topic determines the schema.

        ``late`` is how far behind the newest event time of its partition an event may arrive before it is late.
        ``upcast`` is a function, or a chain of functions, that converts the values of older records to ``schema``
        (``headrace.model.upcast``). ``of`` is the name of the app that owns the topic, if it is another app on the same
        log.
        """
        at = caller()
        topic = Topic(
            name,
            self._schema(schema, at),
            _names(key, at),
            time,
            late,
            "events",
            partitions,
            at,
            _upcaster(upcast, at),
            of,
        )
        self.topics.append(topic)
        return topic

    def table(
        self,
        name: str,
        schema: type | None = None,
        *,
        key: str | Sequence[str] = (),
        partitions: int | None = None,
        upcast: Upcast | Sequence[Upcast] = (),
        of: str | None = None,
    ) -> Topic:
        """Declare a compacted topic: the last row of each key is current, and a null value deletes the row.

        ``upcast`` converts the values of older records, and ``of`` names another app that owns the topic, as for a
        topic of events.
        """
        at = caller()
        topic = Topic(
            name,
            self._schema(schema, at),
            _names(key, at),
            None,
            timedelta(0),
            "table",
            partitions,
            at,
            _upcaster(upcast, at),
            of,
        )
        self.topics.append(topic)
        return topic

    def flow(
        self,
        *,
        reads: Sequence[Topic],
        writes: Topic,
        name: str | None = None,
        deterministic: bool = False,
        unbounded: bool = False,
        latency: Latency = "batch",
        version: str = "",
        late: LateMode | None = None,
    ) -> Callable[[Callable[..., Any]], Flow]:
        """Declare a flow: the decorated function derives ``writes`` from ``reads``.

        The function takes one DataFrame per topic, in the order of ``reads``, and returns one DataFrame.

        ``latency="realtime"`` writes each row on its own, within milliseconds, at least once. docs/flows.md lists the
        functions that can run in this mode.

        ``version`` is part of the function's fingerprint. Change it when the function depends on something that
        cannot be fingerprinted, such as a model that it loads. Without a version, such a function is rejected.

        ``late`` is what happens to late events: "keep" passes them to the function, "drop" leaves them out and records
        their locations, and "side" writes them to the flow's topic of late events. Default: "drop" if the function
        keeps state by event time (windows, joins within a time range), otherwise "keep".
        """
        at = caller()
        if not isinstance(reads, (list, tuple)):
            raise _invalid_argument("reads", reads, "a list of topics", at)
        for topic in reads:
            _expect_topic("reads", topic, at)
        _expect_topic("writes", writes, at)
        if latency not in LATENCIES:
            raise_or_collect(_invalid_argument("latency", latency, " or ".join(map(repr, LATENCIES)), at), at)
            latency = "batch"
        text: Any = version
        if not isinstance(text, str):
            raise_or_collect(_invalid_argument("version", version, "a string, such as '2'", at), at)
            version = ""
        _expect_late_mode(late, latency, at)

        def declare(function: Callable[..., Any]) -> Flow:
            if not hasattr(function, "__code__"):
                raise _invalid_argument("the decorated object", function, "a function", at)
            flow = Flow(
                name or function.__name__,
                function,
                tuple(reads),
                writes,
                deterministic,
                unbounded,
                latency,
                version,
                late,
                location_of(function),
                self.own_names,
            )
            self.flows.append(flow)
            return flow

        return declare

    def view(
        self,
        name: str,
        topic: Topic,
        *,
        key: str | Sequence[str] = (),
        store: Store | None = None,
        cached: int = 0,
    ) -> View:
        """Declare a view: the last row of each key of the topic. ``key`` defaults to the topic's key.

        The view is in a store that follows the topic (default SQLite). With ``OnRead()``, a server computes the view
        on read. ``cached`` is how many responses a server caches, each until the view changes.
        """
        at = caller()
        _expect_topic("a view's topic", topic, at)
        chosen: Any = SQLite() if store is None else store
        if not isinstance(chosen, Store):
            raise_or_collect(_invalid_argument("store", store, "a store of headrace.stores", at), at)
            chosen = SQLite()
        if type(cached) is not int or not 0 <= cached <= _CACHED_MAX:
            raise_or_collect(
                _invalid_argument("cached", cached, f"a number of responses, from 0 to {_CACHED_MAX}", at), at
            )
        view = View(name, topic, _names(key, at) or topic.key, chosen, at, cached, self.own_names)
        (self.computed if isinstance(view.store, OnRead) else self.views).append(view)
        return view

    def alert(self, name: str, when: str, *, on: Flow | View | str | None = None) -> Alert:
        """Declare an alert that fires when ``when`` becomes true, e.g. "time_to_loss < 1h" or "lag > 10_000 for 30s".

        ``on`` is what the rule is checked for: a flow, a view, "group NAME", or all "flows", "views" or "groups". By
        default the rule is checked for every flow, view and group.
        """
        at = caller()
        target: Any = on
        subject = target if isinstance(target, str) else ""
        if isinstance(target, (Flow, View)):
            subject = f"{'flow' if isinstance(target, Flow) else 'view'} {target.name}"
        elif not (target is None or isinstance(target, str)):
            expected = "a flow, a view, or a string such as 'group NAME'"
            raise_or_collect(_invalid_argument("on", on, expected, at), at)
        alert = Alert(name, when, subject, at)
        self.alerts.append(alert)
        return alert

    def writer_of(self, topic: Topic) -> Flow | None:
        return next((flow for flow in self.flows if flow.writes == topic), None)

    def _schema(self, cls: type | None, at: SourceLocation) -> Schema | None:
        try:
            return None if cls is None else schema_of(cls, location=at)
        except SchemaError as mistake:
            raise_or_collect(mistake, at)
            return None


def _names(key: str | Sequence[str], at: SourceLocation) -> tuple[str, ...]:
    names = (key,) if isinstance(key, str) else key
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise_or_collect(_invalid_argument("key", key, "a field's name, or a list of names", at), at)
        return ()
    return tuple(names)


def _upcaster(upcast: Upcast | Sequence[Upcast], at: SourceLocation) -> Upcaster | None:
    functions = tuple(upcast) if isinstance(upcast, (list, tuple)) else (upcast,)
    if not all(hasattr(function, "__code__") for function in functions):
        raise_or_collect(
            _invalid_argument("upcast", upcast, "a function of a value, or a list of functions", at), at
        )
        return None
    return Upcaster(functions, at) if functions else None


def _expect_late_mode(late: Any, latency: Latency, at: SourceLocation) -> None:
    if late == "correct":
        raise AppError(
            'late="correct" is not available yet: it comes with the windows',
            location=at,
            code="HR-APP-ARGUMENT",
            hint='use late="side", and correct the results from the topic of late events',
        )
    if late is not None and late not in LATE_MODES:
        raise _invalid_argument("late", late, " or ".join(map(repr, LATE_MODES)), at)
    if latency == "realtime" and late not in (None, "keep"):
        raise AppError(
            f"a real-time flow keeps all events, but late is {late!r}",
            location=at,
            code="HR-APP-ARGUMENT",
            hint='remove late=, or remove latency="realtime"',
        )


def _expect_topic(what: str, value: Any, at: SourceLocation) -> None:
    if not isinstance(value, Topic):
        hint = f"use {value.name}.writes, the topic that the flow writes" if isinstance(value, Flow) else ""
        raise _invalid_argument(what, value, "a topic from app.topic(...) or app.table(...)", at, hint)


def _invalid_argument(what: str, value: Any, expected: str, at: SourceLocation, hint: str = "") -> AppError:
    actual = f"flow {value.name!r}" if isinstance(value, Flow) else repr(value)
    return AppError(
        f"{what} must be {expected}, not {actual}", location=at, code="HR-APP-ARGUMENT", hint=hint
    )
