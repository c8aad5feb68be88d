"""A stage for the examples: the log and the Spark of all flow tests, and what an example says."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from examples.stage import Stage
from tests.support.flows import FlowWorld
from tests.unit.repository.snippets import blocks, matches
from tests.unit.repository.tracked import ROOT

__all__ = ["Heard", "expect_page"]


@dataclass
class Heard:
    """A stage, and all that was said on it."""

    stage: Stage
    lines: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def heard(flow_world: FlowWorld, tmp_path_factory: pytest.TempPathFactory) -> Heard:
    lines: list[str] = []
    home: Path = tmp_path_factory.mktemp("stage")
    return Heard(Stage(flow_world.cluster.bootstrap, home, lambda: flow_world.spark, lines.append), lines)


def expect_page(example: str, lines: list[str]) -> None:
    """The page of the example shows what was said: its blocks of text, one below the other."""
    page = (ROOT / "examples" / example / "README.md").read_text(encoding="utf-8")
    shown = [line for block in blocks(page) if block.kind == "text" for line in block.text.splitlines()]
    assert matches(shown, "\n".join(lines)), "\n".join(lines)
