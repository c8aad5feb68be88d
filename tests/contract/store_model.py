"""A model of a store, which is compared with the real store after every operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from faults.stores.port import StoreFixture
from headrace.stores.errors import NoKeptPart, PositionMoved, StaleWriter
from headrace.stores.position import NO_BATCH
from headrace.stores.writer import Part
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA, position_of

__all__ = ["Model"]


class Model(RuleBasedStateMachine):
    """Two followers write one view in turn. A dict has the expected rows of each part."""

    backend: StoreFixture

    def __init__(self) -> None:
        super().__init__()
        self.drivers = [StoreDriver(self.backend.open()), StoreDriver(self.backend.open())]
        self.owner = 1
        self.parts: dict[Part, tuple[int, int, dict[str, int]] | None] = dict.fromkeys(Part)
        """Generation, batch and rows of each part; None if the part does not exist."""

    def teardown(self) -> None:
        for driver in self.drivers:
            driver.store.close()
        self.backend.close()

    def _try(self, index: int, operation: Callable[[StoreDriver], None]) -> bool:
        if index == self.owner:
            operation(self.drivers[index])
            return True
        with pytest.raises((StaleWriter, PositionMoved)):
            operation(self.drivers[index])
        return False

    @rule(index=st.integers(0, 1))
    def claim(self, index: int) -> None:
        self.drivers[index].owner = self.drivers[index].store.claim(f"driver {index}", 1)
        self.owner = index

    @rule(index=st.integers(0, 1))
    def reopen(self, index: int) -> None:
        self.drivers[index].store.close()
        self.drivers[index].store = self.backend.open()

    @rule(index=st.integers(0, 1), generation=st.integers(1, 3))
    def begin(self, index: int, generation: int) -> None:
        def operation(driver: StoreDriver) -> None:
            driver.generation = generation
            driver.begin()

        if self._try(index, operation):
            self.parts[Part.BUILDING] = (generation, NO_BATCH, {})

    @rule(
        index=st.integers(0, 1),
        part=st.sampled_from(Part),
        upserts=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9)),
        deleted=st.sets(st.sampled_from("abcdef")),
    )
    def apply(self, index: int, part: Part, upserts: dict[str, int], deleted: set[str]) -> None:
        part_state = self.parts[part]
        batch_changes = changes(SCHEMA, *upserts.items(), deleted=tuple((key,) for key in deleted))
        if part_state is None:
            with pytest.raises((PositionMoved, StaleWriter)):
                self.drivers[index].apply(batch_changes, part)
            return
        generation, batch, rows = part_state

        def operation(driver: StoreDriver) -> None:
            driver.generation, driver.position = generation, position_of(batch, generation)
            driver.apply(batch_changes, part)

        if self._try(index, operation):
            remaining_rows = {key: value for key, value in {**rows, **upserts}.items() if key not in deleted}
            self.parts[part] = (generation, batch + 1, remaining_rows)

    @rule(index=st.integers(0, 1), keep=st.booleans())
    @precondition(lambda self: self.parts[Part.BUILDING] is not None)
    def swap(self, index: int, keep: bool) -> None:
        built = self.parts[Part.BUILDING]
        assert built is not None

        def operation(driver: StoreDriver) -> None:
            driver.generation = built[0]
            driver.store.swap(driver.fence, keep)

        if self._try(index, operation):
            serving, kept = self.parts[Part.SERVING], self.parts[Part.KEPT]
            self.parts = {
                Part.SERVING: built,
                Part.BUILDING: None,
                Part.KEPT: serving if keep and serving is not None else kept,
            }

    @rule(index=st.integers(0, 1))
    def swap_back(self, index: int) -> None:
        kept = self.parts[Part.KEPT]
        if kept is None:
            with pytest.raises(NoKeptPart if index == self.owner else StaleWriter):
                self.drivers[index].store.swap_back(self.drivers[index].fence)
            return

        def operation(driver: StoreDriver) -> None:
            driver.generation = kept[0]
            driver.store.swap_back(driver.fence)

        if self._try(index, operation):
            self.parts |= {Part.SERVING: kept, Part.KEPT: self.parts[Part.SERVING]}

    @rule(index=st.integers(0, 1), part=st.sampled_from([Part.BUILDING, Part.KEPT]))
    def drop(self, index: int, part: Part) -> None:
        if self._try(index, lambda driver: driver.store.drop(part, driver.fence)):
            self.parts[part] = None

    @invariant()
    def the_serving_part_has_the_applied_rows(self) -> None:
        serving, found = self.parts[Part.SERVING], self.backend.read()
        assert found == (None if serving is None else (serving[1], sorted(serving[2].items())))

    @invariant()
    def the_other_parts_have_the_applied_rows(self) -> None:
        for part in (Part.BUILDING, Part.KEPT):
            expected = self.parts[part]
            found = self.drivers[0].part(part)
            assert found == (None if expected is None else (*expected[:2], sorted(expected[2].items())))
