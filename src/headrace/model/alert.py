"""An alert that an app declares: a rule with a name, looked at again and again while the app runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.model.place import Place

__all__ = ["Alert", "alerts_topic"]


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    when: str
    """As ``headrace.model.rule`` reads it."""
    on: str = ""
    """The subject, where it was not said in the rule."""
    place: Place | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        return f"{self.when} on {self.on}" if self.on else self.when


def alerts_topic(app: str) -> str:
    return f"{app}.alerts"
