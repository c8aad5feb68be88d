"""A Spark cluster with authentication: a client without the secret cannot run code, and the secret is in no log,
process list or query plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from faults.servers.spark_cluster import SparkCluster
from headrace.flow.spark import session
from headrace.flow.spark.errors import SparkNotStarted
from headrace.settings import Settings, SparkSettings
from tools.jars import spark_jars
from tools.java import QUICK_START


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with contextlib.closing(SparkCluster(tmp_path_factory.mktemp("secret"), workers=1)) as spark_cluster:
        yield spark_cluster


def _settings(cluster: SparkCluster, data: Path, **spark: object) -> Settings:
    environment = {
        "master": cluster.master,
        "driver_memory": "600m",
        "jars": spark_jars()[0].parent,
        "java_options": " ".join(QUICK_START),
        "conf": {"spark.executor.memory": "512m", "spark.logConf": "true"},
        **spark,
    }
    return Settings(data=data, spark=SparkSettings(**environment))  # type: ignore[arg-type]


def _command_lines(pids: list[int]) -> str:
    command_lines = []
    for pid in pids:
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                command_lines.append(" ".join(process.cmdline()))
    return "\n".join(command_lines)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_command_lines_logs_and_query_plans_do_not_contain_the_secret(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    spark = session.start(_settings(cluster, tmp_path, secret_file=cluster.secret_file), "secret")
    try:
        frame = spark.range(0, 100, 1, 4).selectExpr("sum(id) AS total")
        assert frame.collect()[0].total == 4950
        plan = str(frame._jdf.queryExecution().toString())
        lines = _command_lines([*cluster.pids, spark.sparkContext._gateway.proc.pid])
        assert "CoarseGrainedExecutorBackend" in lines
        assert "org.apache.spark.deploy.SparkSubmit" in lines
    finally:
        session.stop(spark)
    logs = [path for path in (*tmp_path.rglob("*"), *cluster.home.rglob("*")) if path.is_file()]
    output = "\n".join(
        path.read_text(errors="replace")
        for path in logs
        if path not in (cluster.secret_file, cluster.properties) and path.suffix != ".jar"
    )
    assert "spark.authenticate" in output
    for text in (plan, lines, output):
        assert cluster.secret not in text


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_driver_with_another_secret_is_refused(cluster: SparkCluster, tmp_path: Path) -> None:
    settings = _settings(cluster, tmp_path, secret="not the secret of the cluster")
    with pytest.raises(SparkNotStarted):
        session.start(settings, "stranger")
