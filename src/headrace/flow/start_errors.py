"""What can keep Spark from starting, or end it; each with the way to get what is missing.

SparkError             HR-SPARK-FAILED     anything else about Spark itself
├── ExtraMissing       HR-SPARK-EXTRA      a Python package of the extra is not installed
├── JavaMissing        HR-SPARK-JAVA       no Java runtime that is new enough
├── JarsMissing        HR-SPARK-JARS       a jar that could not be fetched
├── JarDiffers         HR-SPARK-JAR-DIFFERS  a jar that is not the pinned one
├── SparkNotStarted    HR-SPARK-START      the JVM or the session did not come up
└── SparkEnded         HR-SPARK-ENDED      the JVM ended while it was needed
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = [
    "ExtraMissing",
    "JarDiffers",
    "JarsMissing",
    "JavaMissing",
    "SparkEnded",
    "SparkError",
    "SparkNotStarted",
]


class SparkError(HeadraceError):
    code = "HR-SPARK-FAILED"


class ExtraMissing(SparkError):
    code = "HR-SPARK-EXTRA"

    def __init__(self, package: str) -> None:
        super().__init__(
            f"flows run on Spark, and the Python package {package} is not installed",
            hint='pip install "headrace[spark]"; where there is no Java either: pip install "headrace[spark,java]"',
        )


class JavaMissing(SparkError):
    code = "HR-SPARK-JAVA"


class JarsMissing(SparkError):
    code = "HR-SPARK-JARS"
    retriable = True


class JarDiffers(SparkError):
    code = "HR-SPARK-JAR-DIFFERS"


class SparkNotStarted(SparkError):
    code = "HR-SPARK-START"


class SparkEnded(SparkError):
    code = "HR-SPARK-ENDED"
    retriable = True
