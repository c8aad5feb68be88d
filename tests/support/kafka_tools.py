"""Apache Kafka's own command-line tools, from the jars of the tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from faults.clients.java_driver import JavaDriver
from tools.jars import kafka_server_classpath
from tools.java import QUICK_START, java

__all__ = ["kafka_tool"]

TOOL_S_MAX = 480
_OWN_JVM = ("TransactionalMessageCopier", "VerifiableConsumer", "VerifiableProducer")
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


def kafka_tool(driver: JavaDriver, name: str, *arguments: str) -> list[str]:
    """Run ``org.apache.kafka.tools.<name>`` to its successful end; return its output by lines.

    A tool that ends its JVM, or prints in a shutdown hook, gets a JVM of its own. The others run in the driver's JVM.
    """
    if name in _OWN_JVM:
        code, output = _in_own_jvm(name, arguments)
    else:
        code, output = _in_driver(driver, name, arguments)
    assert code == 0, f"{name} ended with {code}: {output[-4000:]}"
    return output.splitlines()


def _in_driver(driver: JavaDriver, name: str, arguments: Sequence[str]) -> tuple[int, str]:
    result = driver.call("tool.run", tool=name, arguments=arguments)
    return result["code"], result["output"]


def _in_own_jvm(name: str, arguments: Sequence[str]) -> tuple[int, str]:
    classpath = os.pathsep.join(map(str, kafka_server_classpath()))
    command = [java(), *QUICK_START, "-Xmx256m", QUIET, "-cp", classpath, f"org.apache.kafka.tools.{name}"]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=TOOL_S_MAX, check=False
    )
    return done.returncode, done.stdout + (done.stderr if done.returncode else "")
