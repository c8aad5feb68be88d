"""Slow and many connections: small runs of ``slow_connections`` in ``faults/log`` and ``faults/serve``."""

from __future__ import annotations

import pytest

from faults.log import slow_connections as broker_connections
from faults.run_process import run_in_process
from faults.seeds import seeds
from faults.serve import slow_connections as serve_connections
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", seeds(1))
def test_the_broker_disconnects_slow_and_idle_clients_in_time_and_serves_a_well_behaved_one(
    seed: int,
) -> None:
    expect_no_problems(
        run_in_process(broker_connections, seed, idle=500, slow=12, slow_s=1.5, every_s=1.2, idle_s=6.0)
    )


@pytest.mark.soak
@pytest.mark.parametrize("without", broker_connections.UNPROTECTED)
def test_the_oracle_detects_a_broker_without_protections_from_slow_clients(without: str) -> None:
    """Each protection prevents one fault: the broker never disconnects slow clients, it buffers responses without a
    limit, or idle metrics scrapers block others.
    """
    expect_caught(broker_connections, without, tries=2)


@pytest.mark.parametrize("seed", seeds(1))
def test_the_server_disconnects_slow_clients_in_time_on_every_port(seed: int) -> None:
    expect_no_problems(
        run_in_process(serve_connections, seed, idle=200, receive_s=1.5, every_s=1.25, unread=False)
    )


@pytest.mark.soak
@pytest.mark.parametrize("without", ["http-sweep", "pg-deadlines"])
def test_the_oracle_detects_a_server_without_deadlines(without: str) -> None:
    expect_caught(serve_connections, without, tries=2)
