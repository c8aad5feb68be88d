"""A process that starts Spark as an app does, and then does what standard input says, a JSON line in answer to each.

start   its JVM and what is set      sum    a job's result      ended   why the JVM is gone
stop    stop it                      heard  whether Ctrl-C came
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

from headrace.flow import session
from headrace.flow.archive import archive_of
from headrace.settings import Settings, SparkSettings
from tools.java import QUICK_START

SETTINGS = Settings(
    data=Path(sys.argv[1]),
    spark=SparkSettings(
        master="local[2]",
        driver_memory="600m",
        java_options=" ".join(QUICK_START),
        conf={"spark.sql.shuffle.partitions": "3", "spark.headrace.odd": "a = b: #c\\d é"},
    ),
)


def start() -> tuple[Any, dict[str, Any]]:
    spark: Any = session.start(SETTINGS, "child")
    conf = spark.sparkContext.getConf()
    return spark, {
        "jvm": spark.sparkContext._gateway.proc.pid,
        "odd": conf.get("spark.headrace.odd"),
        "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
        "zone": spark.conf.get("spark.sql.session.timeZone"),
        "ui": spark.sparkContext.uiWebUrl,
        "host": conf.get("spark.driver.host"),
        "port": int(conf.get("spark.driver.port")),
        "archive": str(archive_of(session.launch_for(SETTINGS, say=print))),
    }


def main() -> None:
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append("SIGINT"))
    spark: Any = None
    answer: Any = None
    for line in sys.stdin:
        match line.strip():
            case "start":
                spark, answer = start()
            case "sum":
                answer = spark.range(100).selectExpr("sum(id)").first()[0]
            case "ended":
                why = session.ended(spark)
                answer = why and {"message": why.message, "code": why.code}
            case "stop":
                answer = session.stop(spark)
            case "heard":
                answer = heard
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
