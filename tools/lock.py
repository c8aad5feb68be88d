"""Resolves the dependencies again and writes the lock files: versions and hashes for every platform, no index URLs.

``requirements.lock`` is resolved first. It constrains the lock files for Spark, the server and the tests, so that all
of them use the same versions.
"""

from __future__ import annotations

import sys

from tools.console import SetupError, finish, run, say
from tools.paths import ROOT, VENV

__all__ = ["main"]

_OLDEST_PYTHON = "3.11"
_UV = (
    *(VENV / "bin" / "uv", "pip", "compile", "--quiet", "--upgrade", "--universal", "--generate-hashes"),
    *("--python-version", _OLDEST_PYTHON),
    *("--no-emit-index-url", "--no-emit-find-links", "--no-annotate", "--no-header"),
)
_LOCKS = (
    ("requirements.lock", ("pyproject.toml", "requirements.in")),
    (
        "requirements-spark.lock",
        (
            *("pyproject.toml", "--extra=spark", "requirements.in"),
            *("-c", "requirements.lock", "-c", "constraints.in"),
        ),
    ),
    (
        "requirements-serve.lock",
        (
            "pyproject.toml",
            "--extra=serve",
            "--extra=sql",
            "--extra=search",
            "requirements.in",
            "-c",
            "requirements-spark.lock",
        ),
    ),
    (
        "requirements-test.lock",
        (
            *("pyproject.toml", "requirements-test.in"),
            *("-c", "requirements-spark.lock", "-c", "requirements-serve.lock"),
        ),
    ),
    ("requirements-java.lock", ("requirements-java.in",)),
)


def main() -> int:
    try:
        for output, inputs in _LOCKS:
            say(
                f"uv: {output}",
                f"resolving again from {' and '.join(name for name in inputs if not name.startswith('-'))}",
            )
            sources = [part if part.startswith("-") else str(ROOT / part) for part in inputs]
            run(
                [*_UV, *sources, "-o", ROOT / output],
                failing=f"uv could not resolve {output}",
                hint="check the network, or relax the limit in the error, in pyproject.toml or requirements*.in",
                doing="resolving",
            )
    except SetupError as error:
        return finish(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
