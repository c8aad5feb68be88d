"""Errors that prevent Spark from starting, or that end it.

SparkError             HR-SPARK-FAILED     any other error of Spark
├── MissingExtra       HR-SPARK-EXTRA      a Python package of the extra is not installed
├── MissingJava        HR-SPARK-JAVA       no sufficiently new Java runtime was found
├── MissingJars        HR-SPARK-JARS       a jar could not be downloaded
├── JarDiffers         HR-SPARK-JAR-DIFFERS  the checksum of a jar is not the pinned checksum
├── SparkNotStarted    HR-SPARK-START      the JVM or the session did not start
└── SparkEnded         HR-SPARK-ENDED      the JVM ended unexpectedly
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = [
    "JarDiffers",
    "MissingExtra",
    "MissingJars",
    "MissingJava",
    "SparkEnded",
    "SparkError",
    "SparkNotStarted",
]


class SparkError(HeadraceError):
    code = "HR-SPARK-FAILED"


class MissingExtra(SparkError):
    code = "HR-SPARK-EXTRA"

    def __init__(self, package: str) -> None:
        super().__init__(
            f"flows need Spark, but the Python package {package} is not installed",
            hint='pip install "headrace[spark]"; if Java is missing too: pip install "headrace[spark,java]"',
        )


class MissingJava(SparkError):
    code = "HR-SPARK-JAVA"


class MissingJars(SparkError):
    code = "HR-SPARK-JARS"
    retriable = True


class JarDiffers(SparkError):
    code = "HR-SPARK-JAR-DIFFERS"


class SparkNotStarted(SparkError):
    code = "HR-SPARK-START"


class SparkEnded(SparkError):
    code = "HR-SPARK-ENDED"
    retriable = True
