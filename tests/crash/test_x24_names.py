"""Names that want to be paths: a quick share of ``bench.faults.x24_names`` and of those beside it."""

from __future__ import annotations

import pytest

from bench.faults import declared_names, hostile_manifests, served_names, x24_names
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


@pytest.mark.parametrize("seed", seeds(1))
def test_no_name_in_a_request_to_the_server_becomes_a_path(seed: int) -> None:
    expect_held(run_apart(served_names, seed, cases=100))


def test_a_server_that_reads_files_by_name_is_caught() -> None:
    expect_caught(served_names, "page-names", tries=3, cases=100)


@pytest.mark.parametrize("seed", seeds(1))
def test_no_name_of_an_app_or_on_the_command_line_becomes_a_path(seed: int) -> None:
    expect_held(run_apart(declared_names, seed, cases=100))


def test_an_app_whose_names_are_believed_is_caught_by_the_tree_around_its_data() -> None:
    expect_caught(declared_names, "app-names", tries=3, cases=100)
