"""Names that want to be paths: a quick share of ``bench.faults.x24_names``."""

from __future__ import annotations

import pytest

from bench.faults import hostile_manifests, x24_names
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(3))
def test_no_name_becomes_a_path(seed: int) -> None:
    expect_held(run_apart(x24_names, seed, cases=100))


def test_a_broker_that_uses_names_as_paths_is_caught_by_the_tree_around_its_data() -> None:
    expect_caught(x24_names, "names", tries=8)


@pytest.mark.parametrize("seed", seeds(1))
def test_no_name_in_a_manifest_becomes_a_path(seed: int) -> None:
    expect_held(run_apart(hostile_manifests, seed, cases=100))


def test_a_restore_that_believes_the_names_of_a_manifest_is_caught_by_the_tree_around_it() -> None:
    expect_caught(hostile_manifests, "restored-names", tries=3)
