"""An app whose log contains script in keys, values, headers, names of groups and clients, errors and alerts."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import TopicPartition

from faults.servers.broker_process import BrokerProcess
from faults.servers.serve_process import ServeProcess
from faults.views.scripted_flow import ScriptedFlow
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_dead_letter_topic
from headrace.model.declarations import alerts_topic
from headrace.ops.alerts.alert_log import AlertRecord, encode

__all__ = ["PAYLOADS", "BrowserScene", "browser_scene", "payload"]

PAYLOADS = (
    '<img data-x27 src=x onerror="window.hacked=1">',
    "<script data-x27>window.hacked=1</script>",
    "'\"><svg/onload=hacked=1 data-x27>",
    "<iframe data-x27 srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<input data-x27 autofocus onfocus=hacked=1>",
    "<details data-x27 open ontoggle=hacked=1>",
    "<video data-x27><source onerror=hacked=1></video>",
    "<body data-x27 onload=hacked=1>",
    "<object data-x27 data='javascript:parent.hacked=1'></object>",
    '<a data-x27 href="javascript:hacked=1">a</a>',
    "<math><mtext><table><mglyph><style><img data-x27 src=x onerror=hacked=1>",
    "<style data-x27>@import 'http://127.0.0.1:1/x.css';</style>",
    "<meta data-x27 http-equiv=refresh content='0;url=javascript:hacked=1'>",
    "<base data-x27 href='http://127.0.0.1:1/'>",
    "<template data-x27><script>hacked=1</script></template>",
    "</textarea></title></style></script><img data-x27 src=x onerror=hacked=1>",
    "<img data-x27 src=x:x onerror&#61;hacked=1>",
    "&lt;img data-x27 src=x onerror=hacked=1&gt;",
    "\\u003cimg data-x27 src=x onerror=hacked=1\\u003e",
    "%3Cimg data-x27 src=x onerror=hacked=1%3E",
    "{{constructor.constructor('hacked=1')()}}",
    "${window.hacked=1}",
    "javascript:hacked=1//",
    "data:text/html,<script data-x27>hacked=1</script>",
    "--><img data-x27 src=x onerror=hacked=1><!--",
    "]]><svg data-x27 onload=hacked=1>",
    "\u202e<img data-x27 src=x onerror=hacked=1>",
    "<ſcript data-x27>hacked=1</ſcript>",
    "<x data-x27 contenteditable onblur=hacked=1 tabindex=1 id=x>",
    '"onmouseover="hacked=1" data-x27="',
)


def payload(rng: random.Random) -> str:
    """Return a payload with a number, so that payloads differ."""
    return f"x27-{rng.randrange(10**9)} {rng.choice(PAYLOADS)}"


_NAME = "derived"
_APP = "faults.serve.derived_app:app"
_WAIT_S = 60.0


class BrowserScene:
    """An app with a different payload in each text that its log or view contains."""

    view = _NAME

    def __init__(self, server: ServeProcess, cluster: Cluster, rng: random.Random) -> None:
        self.server = server
        self.cluster = cluster
        self.flow = ScriptedFlow(cluster, _NAME, partitions=1)
        self.topic = self.flow.flow.reads[0].name
        self.dead_topic = self.flow.view.dead_topic
        self.key, self.field, self.value, self.raw = (payload(rng) for _ in range(4))
        self.header, self.header_value, self.row_key = (payload(rng) for _ in range(3))
        self.reason, self.exception, self.letter, self.alert = (payload(rng) for _ in range(4))
        self.group, self.client = f"{payload(rng)}/../?a=b#c", payload(rng)
        # Every run has a payload that every browser would run.
        self.note = f"x27-note {PAYLOADS[0]}"

    def fill(self, home: Path) -> None:
        from faults.views.follower_thread import following

        self.cluster.ensure_topic(self.topic, 1)
        ensure_dead_letter_topic(self.cluster, self.dead_topic, [self.topic])
        self.cluster.ensure_topic(alerts_topic("shop"), 1)
        self.flow.begin()
        self.flow.batch([(self.row_key, {"product": self.row_key, "amount": 1, "note": self.note})])
        self._produce()
        with following(self.cluster, self.flow.view, [self.flow.flow], home) as followed:
            followed.expect(self.flow.derived.rows)

    def _produce(self) -> None:
        producer = self.cluster.producer({"linger.ms": 0})
        value = json.dumps({self.field: self.value}, ensure_ascii=False)
        headers: dict[str, str | bytes | None] = {self.header: self.header_value.encode()}
        producer.produce(self.topic, key=self.key.encode(), value=value, headers=headers)
        producer.produce(self.topic, key=self.key.encode(), value=self.raw.encode())
        error_headers = {"message": self.reason, "exception": self.exception, "topic": self.topic}
        error_headers |= {"partition": "0", "offset": "0"}
        producer.produce(
            self.dead_topic,
            key=self.key.encode(),
            value=self.letter.encode(),
            headers=[(f"__headrace.errors.{name}", text.encode()) for name, text in error_headers.items()],
        )
        now_ms = int(time.time() * 1_000)
        alert = AlertRecord(
            "shop", self.alert, "group", self.group, "firing", now_ms, now_ms, self.reason, self.exception
        )
        key, encoded = encode(alert)
        producer.produce(alerts_topic("shop"), key=key, value=encoded)
        assert producer.flush(30) == 0

    @contextlib.contextmanager
    def member(self) -> Iterator[None]:
        """Run an active member of the group. Its client id is script too."""
        consumer = self.cluster.consumer({"group.id": self.group, "client.id": self.client})
        consumer.subscribe([self.topic])
        try:
            deadline = time.monotonic() + _WAIT_S
            while not consumer.assignment() and time.monotonic() < deadline:
                consumer.poll(0.05)
            consumer.commit(offsets=[TopicPartition(self.topic, 0, 1)], asynchronous=False)
            yield
        finally:
            consumer.close()


@contextlib.contextmanager
def browser_scene(home: Path, rng: random.Random, without: str) -> Iterator[BrowserScene]:
    with BrokerProcess(home / "log", forked=True) as broker:
        broker.start()
        cluster = Cluster(broker.bootstrap)
        data = home / "app"
        server = ServeProcess(data, _APP, broker.bootstrap, {}, without=without)
        scene = BrowserScene(server, cluster, rng)
        scene.fill(data)
        try:
            server.start()
            with scene.member():
                yield scene
        finally:
            server.kill()
