"""A stage on which the examples run, with the log and the Spark session of all flow tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from examples.stage import Stage
from faults.flows.world import FlowWorld
from tests.unit.repository.snippets import blocks, matches
from tests.unit.repository.tracked import ROOT

__all__ = ["PlayedStage", "expect_page"]


@dataclass
class PlayedStage:
    """A stage, and the lines that an example printed on it."""

    stage: Stage
    lines: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def played(flow_world: FlowWorld, tmp_path_factory: pytest.TempPathFactory) -> PlayedStage:
    lines: list[str] = []
    home: Path = tmp_path_factory.mktemp("stage")
    return PlayedStage(
        Stage(flow_world.cluster.bootstrap, home, lambda: flow_world.spark, lines.append), lines
    )


def expect_page(example: str, lines: list[str]) -> None:
    """Compare the text blocks of the example's page, in order, with the printed lines."""
    page = (ROOT / "examples" / example / "README.md").read_text(encoding="utf-8")
    expected_lines = [
        line for block in blocks(page) if block.kind == "text" for line in block.text.splitlines()
    ]
    assert matches(expected_lines, "\n".join(lines)), "\n".join(lines)
