"""Random writes, transactions, deletions and compactions, compared with a complete list."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.files import SystemFiles
from headrace.log.key_map import KEY_BYTES
from headrace.log.partition import PartitionLog
from tests.unit.log.compaction_runs import (
    COMPACTED_TOPIC,
    Key,
    Value,
    assert_unbroken,
    compact,
    end_transaction,
    newest_by_key,
    put,
    read_all,
    seal,
)
from tests.unit.log.conftest import NOW_MS

CONFIG = replace(COMPACTED_TOPIC, segment_bytes=350)

keys = st.sampled_from([b"a", b"b", b"c", b"a-key-of-more-than-sixteen-bytes", b""])
records = st.lists(st.tuples(keys, st.none() | st.binary(max_size=12)), min_size=1, max_size=4)
steps = st.one_of(
    st.tuples(st.just("put"), records, st.integers(0, 4)),
    st.tuples(st.just("idempotent"), records, st.integers(1, 2)),
    st.tuples(st.just("transaction"), records, st.integers(3, 4)),
    st.tuples(st.just("end"), st.integers(3, 4), st.booleans()),
    st.tuples(st.just("compact"), st.integers(0, 1500), st.sampled_from([2, 1000])),
    st.tuples(st.just("compact"), st.integers(0, 1500), st.just(1000)),
    st.tuples(st.just("reopen"), st.booleans(), st.none()),
)


@dataclass(slots=True)
class Model:
    written: dict[int, tuple[Key, Value]] = field(default_factory=dict)
    open: dict[int, list[int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    sequences: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    now_ms: int = NOW_MS

    def end(self, log: PartitionLog, producer_id: int, *, committed: bool) -> None:
        """End a transaction. Producer 4 uses the newer protocol, which raises the epoch with every transaction."""
        if producer_id == 4:
            self.epochs[4] = self.epochs.get(4, 0) + 1
            self.sequences[4] = 0
        end_transaction(log, producer_id, self.epochs.get(producer_id, 0), committed=committed)
        offsets = self.open.pop(producer_id)
        if not committed:
            self.aborted.update(offsets)

    def committed(self, below: int) -> dict[int, tuple[Key, Value]]:
        return {o: r for o, r in sorted(self.written.items()) if o < below and o not in self.aborted}


def check(log: PartitionLog, model: Model) -> None:
    assert_unbroken(log)
    found = read_all(log).records
    stable = log.last_stable_offset
    written = model.committed(stable)
    # Every offset keeps its record, no record above the clean offset is missing, and the table is the same.
    assert found.items() <= written.items()
    assert newest_by_key(found.values()) == newest_by_key(written.values())
    clean = log.compacted.clean_offset
    assert {o for o in written if o >= clean} <= found.keys()
    # A reader that resumes gets the same table, unless its offset is below the tombstone horizon.
    for resume in {0, clean // 2, clean, stable // 2}:
        if resume >= log.tombstone_horizon:
            table = newest_by_key(record for offset, record in written.items() if offset < resume)
            for offset, (key, value) in found.items():
                if offset >= resume:
                    if value is None:
                        table.pop(key, None)
                    else:
                        table[key] = value
            assert table == newest_by_key(written.values())


def act(log: PartitionLog, model: Model, directory: Path, step: tuple[str, object, object]) -> PartitionLog:
    kind, first, second = step
    if kind in ("put", "idempotent", "transaction"):
        assert isinstance(first, list)
        assert isinstance(second, int)
        producer = (-1, -1, -1)
        if kind != "put":
            producer = (second, model.epochs.get(second, 0), model.sequences.get(second, 0))
            model.sequences[second] = producer[2] + len(first)
        base = put(
            log,
            *first,
            codec=second if kind == "put" else 0,
            producer=producer,
            transactional=kind == "transaction",
        )
        model.written.update({base + index: record for index, record in enumerate(first)})
        if kind == "transaction":
            model.open.setdefault(second, []).extend(range(base, base + len(first)))
    elif kind == "end":
        assert isinstance(first, int)
        if first in model.open:
            model.end(log, first, committed=bool(second))
    elif kind == "compact":
        assert isinstance(first, int)
        assert isinstance(second, int)
        model.now_ms += first
        log.roll(NOW_MS)
        model.written[put(log, (b"last", b"one"))] = (b"last", b"one")
        log.sync_now()
        compact(log, now_ms=model.now_ms, memory_bytes=second * KEY_BYTES)
    else:
        log.sync_now()
        if first:
            log.close()
        else:
            # The saved state of producers and transactions is lost, so the log must be scanned.
            for path in directory.glob("*.state"):
                path.unlink()
        log = open_log(directory)
    return log


def open_log(directory: Path) -> PartitionLog:
    return PartitionLog(SystemFiles(), directory, config=CONFIG, now_ms=NOW_MS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=5, max_size=40))
def test_compaction_agrees_with_the_model_after_random_operations(
    history: list[tuple[str, object, object]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        log, model = open_log(directory), Model()
        for step in history:
            log = act(log, model, directory, step)
            if step[0] in ("compact", "reopen"):
                log.sync_now()
                check(log, model)
        for producer_id in list(model.open):
            model.end(log, producer_id, committed=True)
        seal(log)
        model.written[log.end_offset - 1] = (b"last", b"so that the mark moves on")
        log.sync_now()
        check(log, model)
        known = {producer.producer_id: producer for producer in log.producers}
        for producer_id, sequence in model.sequences.items():
            assert known[producer_id].epoch == model.epochs.get(producer_id, 0)
            batches = known[producer_id].batches
            assert [batch.last_sequence for batch in batches][-1:] == ([sequence - 1] if sequence else [])
