"""The last 15 minutes of samples: bounded, in order, unknown numbers as null."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.serve.monitor.sampler import SAMPLES_MAX, Ring


def _view(applied: int | None) -> dict[str, object]:
    lag = {"records": 1, "bytes": None, "seconds": 0.5}
    return {"per_s": 2.0, "applied": applied, "lag": lag, "dead": 0}


@settings(max_examples=20, deadline=None)
@given(count=st.integers(0, SAMPLES_MAX * 2 + 5), since=st.integers(0, SAMPLES_MAX * 2 + 5))
def test_a_ring_keeps_only_the_last_samples(count: int, since: int) -> None:
    ring = Ring("view")
    for at in range(count):
        ring.append(at, _view(at))
    samples = ring.samples(since)
    assert [row[0] for row in samples] == list(range(max(since, count - SAMPLES_MAX), count))
    assert all(row[0] == row[1 + ring.fields.index("applied")] for row in samples)


def test_an_unknown_number_is_null() -> None:
    ring = Ring("view")
    ring.append(1, _view(None))
    assert ring.samples(0) == [[1, 2.0, None, 1.0, None, 0.5, 0.0]]
