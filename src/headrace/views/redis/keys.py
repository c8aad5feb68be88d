"""Which keys a view has in Redis.

    shop:revenue                a hash, what serves: per row a field with its key, and the row as JSON
    {shop:revenue}:building     the same, while it is built anew; takes the place of the other by RENAME
    {shop:revenue}:headrace     a hash, what is known of the view:

        format                  1
        epoch, owner, taken_ms  who may write
        wish                    how often a rebuild was asked for
        serving                 the position of what serves, as JSON; absent before the first swap
        serving.rows            how many rows it has: whoever changes them behind the follower's back is found out
        serving.shape           columns and key, as JSON
        serving.wish            which request to rebuild it has fulfilled
        serving.reason          why it was built
        building, building.…    the same of the other part

Keys with braces are told apart by what is in the braces alone, so all of a view are in one slot of a Redis Cluster.
A hash without fields is no key at all: a view without rows has the last of the three only.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.views.store import Part

__all__ = ["FORMAT", "Keys"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Keys:
    prefix: str
    view: str

    @property
    def serving(self) -> str:
        return f"{self.prefix}{self.view}"

    @property
    def building(self) -> str:
        return f"{self._beside}:building"

    @property
    def known(self) -> str:
        return f"{self._beside}:headrace"

    @property
    def _beside(self) -> str:
        # A prefix with braces of its own has chosen the slot already.
        return self.serving if "{" in self.prefix else f"{{{self.serving}}}"

    def rows(self, part: Part) -> str:
        return self.serving if part is Part.SERVING else self.building
