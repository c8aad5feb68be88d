"""What a store must agree with, through any history."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.views.errors import PositionMoved, StaleWriter
from headrace.views.position import NO_BATCH
from headrace.views.store import Part
from tests.contract.see import See
from tests.contract.store_hand import Hand, changes
from tests.contract.store_writer import SHAPE, position_of

__all__ = ["Model"]


class Model(RuleBasedStateMachine):
    """Two followers take turns at one view; a dict beside each part says what must be there."""

    see: See

    def __init__(self) -> None:
        super().__init__()
        self.hands = [Hand(self.see.open()), Hand(self.see.open())]
        self.owner = 1
        self.parts: dict[Part, tuple[int, int, dict[str, int]] | None] = dict.fromkeys(Part)
        """Generation, batch, rows."""

    def teardown(self) -> None:
        for hand in self.hands:
            hand.store.close()
        self.see.close()

    def _try(self, who: int, do: Callable[[Hand], None]) -> bool:
        if who == self.owner:
            do(self.hands[who])
            return True
        with pytest.raises((StaleWriter, PositionMoved)):
            do(self.hands[who])
        return False

    @rule(who=st.integers(0, 1))
    def take(self, who: int) -> None:
        self.hands[who].owner = self.hands[who].store.take(f"hand {who}", 1)
        self.owner = who

    @rule(who=st.integers(0, 1))
    def reopen(self, who: int) -> None:
        self.hands[who].store.close()
        self.hands[who].store = self.see.open()

    @rule(who=st.integers(0, 1), newer=st.booleans())
    def begin(self, who: int, newer: bool) -> None:
        serving = self.parts[Part.SERVING]
        generation = (serving[0] if serving else 1) + newer

        def do(hand: Hand) -> None:
            hand.generation = generation
            hand.begin()

        if self._try(who, do):
            self.parts[Part.BUILDING] = (generation, NO_BATCH, {})

    @rule(
        who=st.integers(0, 1),
        part=st.sampled_from(Part),
        put=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9)),
        gone=st.sets(st.sampled_from("abcdef")),
    )
    def apply(self, who: int, part: Part, put: dict[str, int], gone: set[str]) -> None:
        known = self.parts[part]
        made = changes(SHAPE, *put.items(), gone=tuple((key,) for key in gone))
        if known is None:
            with pytest.raises((PositionMoved, StaleWriter)):
                self.hands[who].apply(made, part)
            return
        generation, batch, rows = known

        def do(hand: Hand) -> None:
            hand.generation, hand.position = generation, position_of(batch, generation)
            hand.apply(made, part)

        if self._try(who, do):
            left = {key: value for key, value in {**rows, **put}.items() if key not in gone}
            self.parts[part] = (generation, batch + 1, left)

    @rule(who=st.integers(0, 1))
    @precondition(lambda self: self.parts[Part.BUILDING] is not None)
    def swap(self, who: int) -> None:
        built = self.parts[Part.BUILDING]
        assert built is not None

        def do(hand: Hand) -> None:
            hand.generation = built[0]
            hand.store.swap(hand.fence)

        if self._try(who, do):
            self.parts = {Part.SERVING: built, Part.BUILDING: None}

    @invariant()
    def what_serves_is_what_was_applied(self) -> None:
        serving, found = self.parts[Part.SERVING], self.see.look()
        assert found == (None if serving is None else (serving[1], sorted(serving[2].items())))

    @invariant()
    def what_is_built_is_what_was_applied(self) -> None:
        built = self.parts[Part.BUILDING]
        store = self.hands[0].store
        standing = store.standing(Part.BUILDING)
        assert (standing is None) == (built is None)
        if built is not None and standing is not None:
            assert (standing.position.generation, standing.position.batch) == built[:2]
            assert list(store.rows(Part.BUILDING)) == sorted(built[2].items())
