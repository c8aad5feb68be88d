"""The generations of a flow that exist side by side, and which of them serves.

Topic ``headrace.generations`` has a record per derived topic (key: its name). The record names the flow, and all its
generations that exist: the *serving* one, perhaps one that is *building*, and those that are *kept*. Each of them has a
progress topic and a topic for its rows. A flow has one generation until its first rebuild.

The flow's topic, under the name that the app declares, is the *stable topic*. The serving generation writes it; all
other generations write only topics of their own (``<topic>.g2``). A switch to another generation writes the difference
between the two to the stable topic, so a reader of the stable topic needs to know nothing about generations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.app_argument import app_argument
from headrace.errors import HeadraceError

__all__ = [
    "Entry",
    "FlowGenerations",
    "GenerationRead",
    "GenerationServes",
    "GenerationUnknown",
    "Switch",
    "UnreadableGenerations",
    "decode",
    "encode",
]

_SWITCHES_MAX = 20


class UnreadableGenerations(HeadraceError):
    code = "HR-FLOW-GENERATIONS"


class GenerationUnknown(HeadraceError):
    code = "HR-FLOW-GENERATION-UNKNOWN"

    def __init__(self, flow: str, number: int, known: Iterable[int]) -> None:
        numbers = ", ".join(map(str, known)) or "none"
        super().__init__(
            f"flow {flow} has no generation {number}",
            detail=f"its generations are: {numbers}",
            hint=f"headrace generation list {app_argument()} shows the generations of all flows",
        )


class GenerationServes(HeadraceError):
    code = "HR-FLOW-GENERATION-SERVES"

    def __init__(self, flow: str, number: int) -> None:
        super().__init__(
            f"generation {number} of flow {flow} serves, so it cannot be dropped",
            hint=f"switch to another generation first: headrace generation switch {app_argument()} {flow} NUMBER",
        )


class GenerationRead(HeadraceError):
    code = "HR-FLOW-GENERATION-READ"

    def __init__(self, flow: str, number: int, reader: str) -> None:
        super().__init__(
            f"generation {number} of flow {flow} cannot be dropped: flow {reader} serves rows that it derives from it",
            hint=f"switch flow {reader} to another generation first:"
            f" headrace generation switch {app_argument()} {reader} NUMBER",
        )


class Entry(msgspec.Struct, frozen=True):
    """One generation that exists."""

    number: int
    progress: str
    """Its progress topic."""
    topic: str
    """The topic to which it writes its rows. For the first generation this is the stable topic until another generation
    replaces it.
    """
    fingerprint: str
    """The fingerprint of the function that derives it."""
    reason: str
    begun_ms: int
    kept_ms: int = 0
    """When another generation replaced it; 0 if it has not served yet, or serves."""
    is_deployed: bool = False
    """Whether ``headrace deploy`` began it. Its process derives it until it serves."""
    is_within_limits: bool = False
    """Whether it had caught up, with a difference that needs no operator. Flows downstream switch before it, so they
    wait for this.
    """


class Switch(msgspec.Struct, frozen=True):
    """A switch from one generation to another."""

    before: int
    after: int
    at_ms: int
    published: int
    """The number of records that the switch wrote to the stable topic."""
    report: dict[str, Any] | None = None
    """The comparison of the two generations (``headrace.flow.switch.report``). Only the last switch has it."""


class FlowGenerations(msgspec.Struct, frozen=True):
    flow: str
    app: str
    stable: str
    """The name of the stable topic."""
    serving: int
    newest: int
    """The highest number that any generation of the flow ever had."""
    entries: tuple[Entry, ...]
    is_published: bool = True
    """Whether the stable topic has the rows of the serving generation. False after a switch back, until the difference
    is published, and for a flow that an earlier release rebuilt.
    """
    switching: int = 0
    """The generation to which a switch is under way; else 0. Meanwhile the serving generation writes nothing."""
    is_sealed: bool = False
    """Whether the generation to which the flow switches writes nothing either, because its rows are compared."""
    switch_by: str = ""
    """The process that switches, as ``host:pid:run``; ``run`` is random."""
    switch_until_ms: int = 0
    """If the switch has neither ended nor been extended until then, another process may cancel it."""
    switches: tuple[Switch, ...] = ()
    """The last switches, the newest last."""

    def entry(self, number: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.number == number), None)

    def expect(self, number: int) -> Entry:
        found = self.entry(number)
        if found is None:
            raise GenerationUnknown(self.flow, number, (entry.number for entry in self.entries))
        return found

    @property
    def serving_entry(self) -> Entry:
        return self.expect(self.serving)

    @property
    def published_number(self) -> int:
        """The generation whose rows the stable topic has. It may have been dropped."""
        return self.serving if self.is_published or not self.switches else self.switches[-1].before

    @property
    def building(self) -> Entry | None:
        """The newest generation that has never served, if it is newer than the serving one."""
        waiting = [entry for entry in self.entries if self.role(entry.number) == "building"]
        return waiting[-1] if waiting else None

    @property
    def superseded(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if self.role(entry.number) == "superseded")

    @property
    def kept(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.number != self.serving and entry.kept_ms)

    def writes_stable(self, number: int) -> bool:
        """Whether this generation writes the stable topic now."""
        return number == self.serving and self.is_published and not self.switching

    def role(self, number: int) -> str:
        if number == self.serving:
            return "serving"
        found = self.entry(number)
        if found is not None and found.kept_ms:
            return "kept"
        # A newer generation serves, so this one would return to an earlier function.
        newest_served = max(self.serving, *(entry.number for entry in self.entries if entry.kept_ms), 0)
        return "building" if number > newest_served else "superseded"

    def has_served(self, number: int) -> bool:
        """Whether the generation served before and was replaced, even if it serves again."""
        found = self.entry(number)
        return bool(found is not None and found.kept_ms) or any(
            switch.before == number for switch in self.switches
        )

    # Changes

    def with_entry(self, entry: Entry) -> FlowGenerations:
        """Add or replace an entry."""
        others = [other for other in self.entries if other.number != entry.number]
        ordered = tuple(sorted([*others, entry], key=lambda each: each.number))
        return msgspec.structs.replace(self, entries=ordered, newest=max(self.newest, entry.number))

    def without(self, number: int) -> FlowGenerations:
        return msgspec.structs.replace(
            self, entries=tuple(entry for entry in self.entries if entry.number != number)
        )

    def is_paused(self, number: int) -> bool:
        """Whether the generation must not write now, because of a switch."""
        return bool(self.switching) and (
            number == self.serving or (self.is_sealed and number == self.switching)
        )

    def with_switch(self, number: int, by: str, until_ms: int, *, sealed: bool = False) -> FlowGenerations:
        """Begin a switch, or extend it."""
        return msgspec.structs.replace(
            self, switching=number, is_sealed=sealed, switch_by=by, switch_until_ms=until_ms
        )

    def without_switch(self) -> FlowGenerations:
        return msgspec.structs.replace(self, switching=0, is_sealed=False, switch_by="", switch_until_ms=0)

    def switched(
        self,
        published: int,
        at_ms: int,
        *,
        is_published: bool = True,
        report: dict[str, Any] | None = None,
    ) -> FlowGenerations:
        """Complete the switch. An old generation that wrote only the stable topic continues in a topic of its own."""
        old = self.serving_entry
        topic = f"{self.stable}.g{old.number}" if old.topic == self.stable else old.topic
        new = msgspec.structs.replace(self.expect(self.switching), kept_ms=0)
        changed = self.with_entry(msgspec.structs.replace(old, kept_ms=at_ms, topic=topic)).with_entry(new)
        earlier = [msgspec.structs.replace(switch, report=None) for switch in self.switches]
        switch = Switch(old.number, new.number, at_ms, published, report)
        return msgspec.structs.replace(
            changed.without_switch(),
            serving=new.number,
            is_published=is_published,
            switches=(*earlier, switch)[-_SWITCHES_MAX:],
        )


_decoder = msgspec.json.Decoder(FlowGenerations)
_encoder = msgspec.json.Encoder()


def encode(generations: FlowGenerations) -> bytes:
    return _encoder.encode(generations)


def decode(value: bytes, *, where: str) -> FlowGenerations:
    try:
        decoded: FlowGenerations = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableGenerations(
            f"{where} is not of this release: {error}",
            hint="only Headrace may write to this topic; run the release that wrote the record",
        ) from error
    return decoded
