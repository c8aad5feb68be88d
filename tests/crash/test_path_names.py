"""Fault X24, names that are paths, such as ``../x``: a small subset of its cases."""

from __future__ import annotations

import pytest

from faults.log import hostile_manifests
from faults.log import path_names as broker_names
from faults.run_process import run_in_process
from faults.seeds import drawn_seeds
from faults.serve import path_names as serve_names
from faults.views import declared_names
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", drawn_seeds(2))
def test_the_broker_uses_no_name_as_a_path(seed: int) -> None:
    expect_no_problems(run_in_process(broker_names, seed, cases=100))


def test_the_oracle_detects_a_broker_that_uses_names_as_paths() -> None:
    expect_caught(broker_names, "names", tries=8)


@pytest.mark.parametrize("seed", drawn_seeds(1))
def test_a_restore_uses_no_name_in_a_manifest_as_a_path(seed: int) -> None:
    expect_no_problems(run_in_process(hostile_manifests, seed, cases=100))


@pytest.mark.soak
def test_the_oracle_detects_a_restore_that_uses_names_in_a_manifest_as_paths() -> None:
    expect_caught(hostile_manifests, "restored-names", tries=3)


@pytest.mark.parametrize("seed", drawn_seeds(1))
def test_the_server_uses_no_name_in_a_request_as_a_path(seed: int) -> None:
    expect_no_problems(run_in_process(serve_names, seed, cases=100))


@pytest.mark.soak
def test_the_oracle_detects_a_server_that_reads_files_by_name() -> None:
    expect_caught(serve_names, "page-file-allowlist", tries=3, cases=100)


@pytest.mark.parametrize("seed", drawn_seeds(1))
def test_no_name_in_an_app_or_on_the_command_line_is_used_as_a_path(seed: int) -> None:
    expect_no_problems(run_in_process(declared_names, seed, cases=100))


@pytest.mark.soak
def test_the_oracle_detects_an_app_whose_names_are_not_checked() -> None:
    expect_caught(declared_names, "app-names", tries=3, cases=100)
