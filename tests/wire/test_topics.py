"""Administration of topics: create, describe, grow, configure, delete, with Kafka's refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from faults.clients import Client, Record
from faults.clients.port import START, refusal
from faults.servers.server import Server
from faults.wait import until
from tests.wire.client_choice import clients_that_can

Fresh = Callable[[str], str]


def test_a_topic_is_created_described_listed_and_deleted(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    admin = client.admin(cluster.bootstrap)
    assert topic not in admin.topics()
    admin.create_topic(topic, partitions=3)
    until(lambda: topic in admin.topics(), "the topic is listed")
    assert admin.describe_topic(topic) == [
        {"partition": partition, "leader": 1, "replicas": [1], "isr": [1]} for partition in range(3)
    ]
    admin.delete_topic(topic)
    until(lambda: topic not in admin.topics(), "the topic is gone")
    assert refusal(admin.delete_topic, topic) == 3


def test_the_cluster_is_one_node_that_is_its_own_controller(cluster: Server, client: Client) -> None:
    assert client.admin(cluster.bootstrap).cluster() == {
        "controller": 1,
        "nodes": [(1, "127.0.0.1", cluster.port)],
    }


@pytest.mark.parametrize(
    "name",
    ["../x", "a/b", "nul\0name", ".", "..", "x" * 250, "with space", "größe", "a\\b", "a:b", "~", "%2e%2e"],
)
def test_a_topic_name_that_could_be_a_path_is_refused(
    cluster: Server, clients: dict[str, Client], name: str
) -> None:
    """The server refuses the name, for every client that sends it."""
    before = sorted(cluster.data.parent.iterdir())
    for client in clients.values():
        if client.name == "librdkafka" and "\0" in name:
            # This client passes names as C strings and cannot send this one.
            continue
        assert refusal(client.admin(cluster.bootstrap).create_topic, name) == 17
    assert sorted(cluster.data.parent.iterdir()) == before


def test_names_that_differ_in_case_are_two_topics(cluster: Server, client: Client, fresh: Fresh) -> None:
    lower = fresh("case")
    upper = lower.upper()
    admin = client.admin(cluster.bootstrap)
    for name in (lower, upper):
        admin.create_topic(name)
        client.produce(cluster.bootstrap, name, [Record(name.encode())])
    for name in (lower, upper):
        with client.consumer(cluster.bootstrap) as consumer:
            consumer.assign({(name, 0): START})
            assert [(record.offset, record.value) for record in consumer.take(1)] == [(0, name.encode())]


def test_a_topic_name_may_have_249_characters(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t").ljust(249, "x")
    client.admin(cluster.bootstrap).create_topic(topic)
    assert client.produce(cluster.bootstrap, topic, [Record(b"v")]) == [(0, 0)]
    client.admin(cluster.bootstrap).delete_topic(topic)


def test_names_that_differ_in_dot_and_underscore_collide(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("a.b")
    admin = client.admin(cluster.bootstrap)
    admin.create_topic(topic)
    assert refusal(admin.create_topic, topic.replace(".", "_")) == 17


def test_an_invalid_topic_is_refused_with_the_reason(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    admin = client.admin(cluster.bootstrap)
    admin.create_topic(topic)
    other = fresh("other")
    observed = {
        "again": refusal(admin.create_topic, topic),
        "two copies": refusal(admin.create_topic, other, replication=2),
        "no number": refusal(admin.create_topic, other, configs={"retention.ms": "soon"}),
        "too small": refusal(admin.create_topic, other, configs={"segment.bytes": "1"}),
        "no such policy": refusal(admin.create_topic, other, configs={"cleanup.policy": "burn"}),
        "no such setting": refusal(admin.create_topic, other, configs={"zap": "1"}),
        "only tried": refusal(admin.create_topic, other, validate=True),
    }
    assert observed == {
        "again": 36,
        "two copies": 38,
        "no number": 40,
        "too small": 40,
        "no such policy": 40,
        "no such setting": 40,
        "only tried": 0,
    }
    assert other not in admin.topics()


def test_a_topic_without_partitions_is_refused(
    cluster: Server, clients: dict[str, Client], fresh: Fresh
) -> None:
    # librdkafka refuses this itself, without a request to the server.
    for name in ("java", "kafka-python", "aiokafka"):
        admin = clients[name].admin(cluster.bootstrap)
        assert refusal(admin.create_topic, fresh("t"), partitions=0) == 37


def test_partitions_are_added_but_never_removed(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    admin = client.admin(cluster.bootstrap)
    admin.create_topic(topic, partitions=2)
    client.produce(cluster.bootstrap, topic, [Record(b"kept", partition=1)])
    admin.create_partitions(topic, 4)
    until(lambda: len(admin.describe_topic(topic)) == 4, "the partitions are there")
    assert client.produce(cluster.bootstrap, topic, [Record(b"new", partition=3)]) == [(3, 0)]
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 1): START})
        assert [record.value for record in consumer.take(1)] == [b"kept"]
    observed = [refusal(admin.create_partitions, topic, total) for total in (4, 3)]
    assert [*observed, refusal(admin.create_partitions, fresh("nowhere"), 2)] == [37, 37, 3]


def test_settings_show_overrides_and_defaults(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    admin = client.admin(cluster.bootstrap)
    admin.create_topic(topic, configs={"retention.ms": "60000", "compression.type": "zstd"})
    until(lambda: topic in admin.topics(), "the topic is listed")
    configs = admin.configs(topic)
    wanted = {
        "retention.ms": ("60000", False),
        "compression.type": ("zstd", False),
        "retention.bytes": ("-1", True),
        "segment.bytes": ("1073741824", True),
        "segment.ms": ("604800000", True),
        "max.message.bytes": ("1048588", True),
        "message.timestamp.type": ("CreateTime", True),
        "message.timestamp.before.max.ms": ("9223372036854775807", True),
        "message.timestamp.after.max.ms": ("3600000", True),
        "cleanup.policy": ("delete", True),
    }
    assert {name: configs[name] for name in wanted} == wanted


@clients_that_can("incremental")
def test_configs_are_set_appended_subtracted_and_reset(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    admin = client.admin(cluster.bootstrap)
    admin.create_topic(topic, configs={"retention.ms": "60000"})
    observed: list[tuple[tuple[str, bool], tuple[str, bool]]] = []

    def change(*changes: tuple[str, str, str | None]) -> None:
        admin.alter_configs(topic, changes)

        def now() -> tuple[tuple[str, bool], tuple[str, bool]]:
            configs = admin.configs(topic)
            return configs["retention.ms"], configs["cleanup.policy"]

        # Kafka's controller notifies the broker a moment after the response.
        before = observed[-1] if observed else (("60000", False), ("delete", True))
        until(lambda: now() != before, "the change shows")
        observed.append(now())

    change(("SET", "retention.ms", "70000"))
    change(("APPEND", "cleanup.policy", "compact"))
    change(("SUBTRACT", "cleanup.policy", "delete"), ("DELETE", "retention.ms", None))
    change(("DELETE", "cleanup.policy", None))
    assert observed == [
        (("70000", False), ("delete", True)),
        (("70000", False), ("delete,compact", False)),
        (("604800000", True), ("compact", False)),
        (("604800000", True), ("delete", True)),
    ]


@clients_that_can("incremental")
def test_an_invalid_setting_changes_nothing(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    admin = client.admin(cluster.bootstrap)
    admin.create_topic(topic, configs={"retention.ms": "60000"})
    observed = {
        "no number": refusal(admin.alter_configs, topic, [("SET", "retention.ms", "soon")]),
        "below the least": refusal(admin.alter_configs, topic, [("SET", "retention.ms", "-2")]),
        "no list": refusal(admin.alter_configs, topic, [("APPEND", "retention.ms", "5")]),
        "no such setting": refusal(admin.alter_configs, topic, [("SET", "zap", "5")]),
        "one of two": refusal(
            admin.alter_configs, topic, [("SET", "segment.ms", "1000"), ("SET", "retention.ms", "soon")]
        ),
        "no such topic": refusal(admin.alter_configs, fresh("nowhere"), [("SET", "retention.ms", "5")]),
    }
    assert observed == {
        "no number": 40,
        "below the least": 40,
        "no list": 40,
        "no such setting": 40,
        "one of two": 40,
        "no such topic": 3,
    }
    configs = admin.configs(topic)
    assert (configs["retention.ms"], configs["segment.ms"]) == (("60000", False), ("604800000", True))


@clients_that_can("incremental")
def test_a_changed_setting_takes_effect_on_a_running_topic(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    admin = client.admin(cluster.bootstrap)
    admin.create_topic(topic)
    large = [Record(b"x" * 5000)]
    assert client.produce(cluster.bootstrap, topic, large) == [(0, 0)]
    admin.alter_configs(topic, [("SET", "max.message.bytes", "1000")])
    until(lambda: refusal(client.produce, cluster.bootstrap, topic, large) == 10, "the limit is in force")
    admin.alter_configs(topic, [("DELETE", "max.message.bytes", None)])
    until(lambda: refusal(client.produce, cluster.bootstrap, topic, large) == 0, "the limit is lifted")


@clients_that_can("log_dirs")
def test_log_directories_show_the_bytes_of_each_partition(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    admin = client.admin(cluster.bootstrap)
    admin.create_topic(topic, partitions=2)
    client.produce(cluster.bootstrap, topic, [Record(b"x" * 10_000)])
    sizes = admin.log_dirs(topic)
    assert sizes.keys() == {0, 1}
    assert 10_000 < sizes[0] < 11_000
    assert sizes[1] == 0


def test_records_are_deleted_up_to_an_offset(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    admin = client.admin(cluster.bootstrap)
    admin.create_topic(topic)
    client.produce(cluster.bootstrap, topic, [Record(b"%d" % n) for n in range(10)])
    observed = [admin.delete_records({(topic, 0): offset})[topic, 0] for offset in (4, 2, 7)]
    assert observed == [4, 4, 7]
    assert refusal(admin.delete_records, {(topic, 0): 11}) == 1
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): START})
        assert [record.offset for record in consumer.take(3)] == [7, 8, 9]
    assert admin.delete_records({(topic, 0): -1}) == {(topic, 0): 10}
    assert client.produce(cluster.bootstrap, topic, [Record(b"next")]) == [(0, 10)]
