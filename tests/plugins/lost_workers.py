"""A test process that dies ends the run, as a failure.

pytest-xdist would replace it and go on, but under ``--dist loadfile`` the replacement waits for ever for the rest of
the file whose test died. The trace above the last line names the test.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    if error:
        pytest.exit(
            f"the test process {node.gateway.id} died: {error}", returncode=pytest.ExitCode.TESTS_FAILED
        )
