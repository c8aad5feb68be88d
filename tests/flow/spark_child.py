"""A process that starts Spark like an app, and runs commands from standard input. Each response is a line of JSON.

start   start Spark; return the JVM's pid and the configuration
stop    stop Spark
sum     return the result of a job
ended   return why the JVM has ended
interrupts   return the received interrupts (Ctrl-C)
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

from headrace.flow.spark import session
from headrace.flow.spark.class_archive import archive_of
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
    interrupts = []
    signal.signal(signal.SIGINT, lambda *_: interrupts.append("SIGINT"))
    spark: Any = None
    response: Any = None
    for line in sys.stdin:
        match line.strip():
            case "start":
                spark, response = start()
            case "sum":
                response = spark.range(100).selectExpr("sum(id)").first()[0]
            case "ended":
                ended = session.ended(spark)
                response = ended and {"message": ended.message, "code": ended.code}
            case "stop":
                response = session.stop(spark)
            case "interrupts":
                response = interrupts
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
