"""An app: what there is to run. Declaring something does nothing else; ``headrace run`` acts on it.

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

from headrace.model.alert import Alert
from headrace.model.errors import AppError
from headrace.model.flow import LATENCIES, Flow, Latency
from headrace.model.place import Place, caller, place_of
from headrace.model.schema import Schema, schema_of
from headrace.model.store import OnRead, SQLite, Store
from headrace.model.topic import Topic
from headrace.model.view import View

__all__ = ["App"]

_CACHED_MAX = 100_000


class App:
    """Mistakes that one declaration shows are raised by it; those of the whole ``headrace.model.graph`` finds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.place = caller()
        self.topics: list[Topic] = []
        self.flows: list[Flow] = []
        self.views: list[View] = []
        self.computed: list[View] = []
        """Views that nothing keeps: a server computes them when it is asked."""
        self.alerts: list[Alert] = []

    def topic(
        self,
        name: str,
        schema: type | None = None,
        *,
        key: str | Sequence[str] = (),
        time: str | None = None,
        late: timedelta = timedelta(0),
        partitions: int | None = None,
    ) -> Topic:
        """Facts, all of which count. Without a schema, the flow that writes it gives it one."""
        made = Topic(
            name, self._schema(schema), _names(key, caller()), time, late, "events", partitions, caller()
        )
        self.topics.append(made)
        return made

    def table(
        self,
        name: str,
        schema: type | None = None,
        *,
        key: str | Sequence[str] = (),
        partitions: int | None = None,
    ) -> Topic:
        """Rows, of which the last of each key counts, and a null value deletes: a compacted topic."""
        made = Topic(
            name,
            self._schema(schema),
            _names(key, caller()),
            None,
            timedelta(0),
            "table",
            partitions,
            caller(),
        )
        self.topics.append(made)
        return made

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
    ) -> Callable[[Callable[..., Any]], Flow]:
        """The function under it derives ``writes`` from ``reads``: DataFrames in their order in, one DataFrame out.

        ``latency="realtime"`` writes each row by itself, within milliseconds, at least once; docs/flows.md says which
        functions can.

        ``version`` counts as a part of the function. Change it when something changes that the function reads and that
        cannot be fingerprinted, such as a model that it loads; without a version such a function is refused.
        """
        at = caller()
        if not isinstance(reads, (list, tuple)):
            raise _wrong("reads", reads, "a list of topics", at)
        for topic in reads:
            _expect_topic("reads", topic, at)
        _expect_topic("writes", writes, at)
        if latency not in LATENCIES:
            raise _wrong("latency", latency, " or ".join(map(repr, LATENCIES)), at)
        if not isinstance(version, str):
            raise _wrong("version", version, "a text, such as '2'", at)

        def declare(function: Callable[..., Any]) -> Flow:
            if not hasattr(function, "__code__"):
                raise _wrong("what is decorated", function, "a function", at)
            made = Flow(
                name or function.__name__,
                function,
                tuple(reads),
                writes,
                deterministic,
                unbounded,
                latency,
                version,
                place_of(function),
            )
            self.flows.append(made)
            return made

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
        """The topic folded by its key, or by another one, in a store that follows it; or, with ``OnRead()``, when it is
        asked for. A server keeps so many answers as ``cached`` says, each as long as the view has not moved.
        """
        at = caller()
        _expect_topic("a view's topic", topic, at)
        if store is not None and not isinstance(store, Store):
            raise _wrong("store", store, "one of headrace.stores", at)
        if type(cached) is not int or not 0 <= cached <= _CACHED_MAX:
            raise _wrong("cached", cached, f"a number of answers, from 0 to {_CACHED_MAX}", at)
        made = View(name, topic, _names(key, at) or topic.key, store or SQLite(), at, cached)
        (self.computed if isinstance(made.store, OnRead) else self.views).append(made)
        return made

    def alert(self, name: str, when: str, *, on: Flow | View | str | None = None) -> Alert:
        """Fires when ``when`` begins to hold, as "time_to_loss < 1h" or "lag > 10_000 for 30s".

        ``on`` is what it is about: a flow, a view, "group NAME", or all "flows", "views" or "groups"; without it, all.
        """
        at = caller()
        if isinstance(on, (Flow, View)):
            subject = f"{'flow' if isinstance(on, Flow) else 'view'} {on.name}"
        elif on is None or isinstance(on, str):
            subject = on or ""
        else:
            raise _wrong("on", on, "a flow, a view, or a text such as 'group NAME'", at)
        made = Alert(name, when, subject, at)
        self.alerts.append(made)
        return made

    def writer_of(self, topic: Topic) -> Flow | None:
        """The flow that derives it, if one does."""
        return next((flow for flow in self.flows if flow.writes == topic), None)

    def _schema(self, given: type | None) -> Schema | None:
        return None if given is None else schema_of(given, place=caller())


def _names(key: str | Sequence[str], at: Place) -> tuple[str, ...]:
    names = (key,) if isinstance(key, str) else key
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise _wrong("key", key, "a field's name, or a list of names", at)
    return tuple(names)


def _expect_topic(what: str, given: Any, at: Place) -> None:
    if not isinstance(given, Topic):
        hint = f"what it writes is {given.name}.writes" if isinstance(given, Flow) else ""
        raise _wrong(what, given, "a topic, as app.topic(...) and app.table(...) return it", at, hint)


def _wrong(what: str, given: Any, expected: str, at: Place, hint: str = "") -> AppError:
    found = f"flow {given.name!r}" if isinstance(given, Flow) else repr(given)
    return AppError(f"{what} must be {expected}, not {found}", place=at, code="HR-APP-ARGUMENT", hint=hint)
