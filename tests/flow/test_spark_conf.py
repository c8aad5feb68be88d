"""Spark's configuration; a property that would have no effect is refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headrace.errors import ConfigError
from headrace.flow.context import FlowOptions
from headrace.flow.spark.conf import REALTIME_POOL, spark_conf, write_pools
from headrace.flow.spark.session import spill_folder
from headrace.settings import FlowSettings, Settings, SparkSettings

CONNECTOR = [Path("/jars/connector.jar")]


SECRET = "a secret of the cluster"


def conf(**spark: object) -> dict[str, str]:
    settings = Settings(spark=SparkSettings(**spark))  # type: ignore[arg-type]
    return spark_conf(settings, "shop", CONNECTOR, Path("/spill"))


def test_a_local_spark_uses_its_cores_and_listens_on_this_machine_only() -> None:
    found = conf(master="local[3]")
    assert (found["spark.sql.shuffle.partitions"], found["spark.default.parallelism"]) == ("3", "3")
    assert found["spark.driver.bindAddress"] == found["spark.driver.host"] == "127.0.0.1"
    assert (found["spark.local.dir"], "spark.jars" in found) == ("/spill", False)
    assert conf(shuffle_partitions=8)["spark.sql.shuffle.partitions"] == "8"


def test_a_cluster_gets_the_connector_and_the_users_jars_and_keeps_its_own_addresses() -> None:
    found = conf(master="spark://a:7077", secret=SECRET, conf={"spark.jars": "/mine.jar"})
    assert found["spark.jars"] == "/jars/connector.jar,/mine.jar"
    assert "spark.driver.host" not in found


def test_a_cluster_has_its_own_partitions_state_and_trigger_unless_they_are_set() -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    found = conf(master="yarn")
    assert (found["spark.sql.shuffle.partitions"], "RocksDB" in found[provider]) == ("16", True)
    found = conf(master="yarn", shuffle_partitions=3, state="memory")
    assert (found["spark.sql.shuffle.partitions"], provider in found) == ("3", False)
    on_yarn = Settings(spark=SparkSettings(master="yarn"))
    assert (FlowOptions.of(on_yarn).trigger_ms, FlowOptions.of(Settings()).trigger_ms) == (500, 0)
    configured = Settings(spark=on_yarn.spark, flow=FlowSettings(trigger_ms=0))
    assert FlowOptions.of(configured).trigger_ms == 0


@pytest.mark.parametrize(
    "master", ["local", "local[3]", "local[*]", "local[4,2]", "yarn", "k8s://https://a:1"]
)
def test_spark_creates_its_own_secret_if_it_can(master: str) -> None:
    found = conf(master=master)
    assert found["spark.authenticate"] == "true"
    assert "spark.authenticate.secret" not in found


def test_a_standalone_cluster_requires_a_configured_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    for secret in ({"secret": SECRET}, {"secret_file": tmp_path / "secret"}):
        found = conf(master="spark://a:7077", **secret)
        assert (found["spark.authenticate"], found["spark.authenticate.secret"]) == ("true", SECRET)
    own = {"spark.authenticate.secret": "of the user"}
    assert conf(master="spark://a:7077", conf=own)["spark.authenticate.secret"] == "of the user"
    with pytest.raises(ConfigError, match="no secret is set") as refused:
        conf(master="spark://a:7077")
    assert "spark.secret_file" in refused.value.hint
    with pytest.raises(ConfigError, match="5 bytes"):
        conf(master="spark://a:7077", secret="short")
    # The user's setting has precedence.
    off = {"spark.authenticate": "false"}
    assert conf(master="spark://a:7077", conf=off)["spark.authenticate"] == "false"
    first, second = (conf(master="local-cluster[2,1,1024]")["spark.authenticate.secret"] for _ in range(2))
    assert first != second


def test_flows_in_real_time_have_extra_slots_and_get_free_ones_first(
    tmp_path: Path,
) -> None:
    settings = Settings(spark=SparkSettings(master="local[3]"))
    found = spark_conf(settings, "shop", CONNECTOR, tmp_path, slots=2)
    assert (found["spark.master"], found["spark.scheduler.mode"]) == ("local[5]", "FAIR")
    assert "spark.scheduler.mode" not in conf()
    write_pools(tmp_path)
    pools = ElementTree.parse(found["spark.scheduler.allocation.file"].removeprefix("file://")).getroot()
    assert [pool.get("name") for pool in pools] == [REALTIME_POOL]


def test_the_users_configuration_overrides_the_defaults() -> None:
    user_conf = {"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "5"}
    assert user_conf.items() <= conf(conf=user_conf).items()


def test_state_is_in_rocksdb_if_configured() -> None:
    name = "spark.sql.streaming.stateStore.providerClass"
    assert name not in conf()
    found = conf(state="rocksdb")
    assert "RocksDB" in found[name]
    # RocksDB's memory is outside the heap, so it must have a limit.
    assert found["spark.sql.streaming.stateStore.rocksdb.writeBufferSizeMB"] == "8"


@pytest.mark.parametrize("name", ["spark.driver.memory", "spark.driver.extraJavaOptions", "spark.master"])
def test_a_property_that_would_have_no_effect_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="would have no effect") as caught:
        conf(conf={name: "x"})
    assert caught.value.hint.startswith("set spark.")


def test_the_spill_directory_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid in (gone.pid, os.getppid()):
        (tmp_path / f"tmp-{pid}").mkdir()
        (tmp_path / f"tmp-{pid}" / "spilled").touch()
    folder = spill_folder(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([folder, tmp_path / f"tmp-{os.getppid()}"])
    assert spill_folder(tmp_path) == folder
