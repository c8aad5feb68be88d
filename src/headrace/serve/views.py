"""The views of an app, to be asked: whichever store they are in, and whichever view answers to a name."""

from __future__ import annotations

import threading
from pathlib import Path

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.names import names_of
from headrace.clock import Clock
from headrace.model.store import OnRead
from headrace.model.view import View
from headrace.serve.asker_pool import AskerPool
from headrace.serve.errors import NotServing, NotThere
from headrace.views.asking import Ask, Asker
from headrace.views.log_asking import LogAsker
from headrace.views.opening import open_asker
from headrace.views.position import Standing
from headrace.views.question import Asked

__all__ = ["Views"]

_NAMES_S = 5.0


class Views:
    """For any thread; what asks a store blocks."""

    def __init__(self, app: App, cluster: Cluster, data: Path, clock: Clock, kept_max: int) -> None:
        self._app = app
        self._cluster = cluster
        self._clock = clock
        self._data = data
        self._declared = {view.name: view for view in (*app.views, *app.computed)}
        self._pools = {
            view.name: AskerPool(lambda view=view: self._asker(view), kept_max)  # type: ignore[misc]
            for view in self._declared.values()
        }
        self._names: dict[str, str] = {}
        self._naming = threading.Lock()
        self._look_at_names()

    def _asker(self, view: View) -> Asker | None:
        if isinstance(view.store, OnRead):
            return LogAsker(self._cluster, view, self._app.flows, view.store.records_max, self._clock)
        return open_asker(view, self._app.name, self._data)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    @property
    def names(self) -> list[str]:
        return [*self._declared]

    def answering(self, name: str) -> View:
        """The view that a name is answered by: another one where it was switched to."""
        if name not in self._declared:
            raise NotThere(f"there is no view {name[:100]!r}", hint="see what there is: GET /v1/views")
        return self._declared[self._switched().get(name, name)]

    def _switched(self) -> dict[str, str]:
        """As the log said a few seconds ago; nobody waits for it, since the stores answer without the log."""
        if self._clock.steady() - self._named > _NAMES_S and self._naming.acquire(blocking=False):
            threading.Thread(target=self._look_again, name="serve names", daemon=True).start()
        return self._names

    def _look_again(self) -> None:
        try:
            self._look_at_names()
        finally:
            self._naming.release()

    def _look_at_names(self) -> None:
        try:
            found = names_of(self._cluster, self._app.name)
            self._names = {name: view for name, view in found.items() if view in self._declared}
        except LogError:
            pass  # What was known last still holds.
        finally:
            self._named = self._clock.steady()

    def standing(self, view: View) -> Standing | None:
        """None if nothing serves yet."""
        return self._pools[view.name].ask(lambda asker: asker.standing(view.name))

    def ask(self, view: View, ask: Ask, timeout_s: float) -> Asked:
        found = self._pools[view.name].ask(lambda asker: asker.ask(view.name, ask, timeout_s))
        if found is None:
            raise NotServing(
                f"view {view.name!r} has nothing to read yet",
                hint=f"is there a topic {view.topic.name!r}? headrace topic create"
                if isinstance(view.store, OnRead)
                else "it is built by whoever follows it: headrace run, or headrace view follow",
            )
        if found.standing.fault:
            raise NotServing(f"view {view.name!r} is not as it was written: {found.standing.fault}")
        return found
