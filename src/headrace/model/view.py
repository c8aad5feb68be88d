"""A view: a topic, folded by its key, in a store that follows it, or when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.model.place import Place
from headrace.model.store import Store
from headrace.model.topic import Topic

__all__ = ["View"]


@dataclass(frozen=True, slots=True)
class View:
    name: str
    topic: Topic
    key: tuple[str, ...]
    store: Store
    place: Place | None = field(default=None, compare=False)
    cached: int = 0
    """How many answers a server keeps of it, each as long as the view has not moved."""

    @property
    def dead_topic(self) -> str:
        return f"{self.name}.dead"
