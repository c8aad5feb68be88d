"""A statement from whoever sends it to its answer: what is it about, may they, is it there yet, and the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.model.store import Delta, OnRead, Postgres, Redis, Search, SQLite
from headrace.model.store_place import file_of, prefix_of
from headrace.model.view import View
from headrace.serve.errors import NotAllowed, NotThere, ServeError, TokenUnfit
from headrace.serve.scope import READ_VIEW
from headrace.serve.sql.errors import SqlRefused
from headrace.serve.sql.messages import Answered, Listed, Parsed, Source, ToAnswer, ToParse, Words
from headrace.serve.token import Token
from headrace.serve.tokens import Caller
from headrace.serve.waiting import late
from headrace.views.errors import QuestionRefused

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["Asking", "Parameter"]

Parameter = None | bool | int | float | str | list[str | None]


@dataclass(frozen=True, slots=True)
class Named:
    """What a statement calls a view, and the one that answers."""

    name: str
    view: View
    words: str = ""


class Asking:
    def __init__(self, served: Served, caller: Caller) -> None:
        self._served = served
        self._caller = caller

    async def answer(
        self,
        sql: str,
        parameters: Sequence[Parameter],
        form: str,
        token: Token | None = None,
        deadline: float = 0.0,
        bytes_max: int | None = None,
        **wire: Any,
    ) -> Answered:
        """``wire`` is what the PostgreSQL protocol has to say beside (``ToAnswer``)."""
        served, limits, token_id = self._served, self._served.limits, self._caller.token_id
        self._expect_reader()
        parsed = await served.sql.parse(ToParse(sql, form == "rows"), token_id)
        named = await served.work.run(lambda: self._named(parsed), limits.read_s)
        if parsed.catalogue:
            wire["listed"] = await served.work.run(self._listed, limits.read_s)
        about = self._about([one.view for one in named], token, form) if token is not None else []
        ask = ToAnswer(
            sql,
            list(parameters),
            [source_of(one, served.app.name, served.data) for one in named],
            *(
                limits.sql_s,
                limits.sql_rows_max,
                bytes_max or limits.answer_bytes_max,
                limits.sql_memory_bytes,
            ),
            form,
            **wire,
        )
        while True:
            for view in about:
                assert token is not None
                await served.waiting.until(view, token, deadline)
            answered = await served.sql.answer(ask, token_id)
            # What was read may be of an earlier position again: a store was put back.
            behind = [
                (view, stood.position)
                for one, stood in zip((one for one in named if not one.words), answered.stood, strict=True)
                if (view := one.view) in about and not served.waiting.covers(view, stood.position, token)
            ]
            if not behind:
                return answered
            if served.clock.steady() > deadline:
                raise late(*behind[0])

    def _expect_reader(self) -> None:
        """A statement may name no view at all, and still costs a process."""
        if not self._caller.may_some(READ_VIEW):
            raise NotAllowed(
                f"SQL needs {READ_VIEW} of some view, and the token has none",
                hint=f"give it the scope: headrace token create NAME --scope {READ_VIEW}:NAME",
            )

    def _listed(self) -> list[Listed]:
        """What the caller may see, and can: not those that nothing has been read of yet."""
        found = []
        for name in self._served.views.names:
            view = self._served.views.answering(name)
            if self._caller.may(READ_VIEW, name) and not isinstance(view.store, OnRead):
                standing = self._served.views.standing(view)
                if standing is not None:
                    found.append(Listed(name, standing.shape.tell()))
        return found

    def _about(self, views: list[View], token: Token, form: str) -> list[View]:
        """Those that the token says something of: at least one, unless it was given for a whole connection."""
        found, trouble = [], None
        for view in views:
            try:
                self._served.coverage.expect_about(view, token)
            except TokenUnfit as error:
                trouble = error
            else:
                found.append(view)
        if not found and form != "rows":
            raise trouble or TokenUnfit("after says something of views, and the statement names none")
        return found

    def _named(self, parsed: Parsed) -> list[Named]:
        """By the names that the caller may read. Any other name is answered as if there were no such view, so that
        nobody learns which there are: not by a name that WITH takes, by a function, or by large and small letters.
        """
        found: list[Named] = []
        wished = [*(Words(name, "") for name in parsed.names), *parsed.words]
        wished += [Words(one.name, "") for one in parsed.words if one.name not in parsed.names]
        for one in wished:
            name = self.spelled(one.name)
            if name is not None:
                found.append(Named(one.name, self._served.views.answering(name), one.words))
            elif one.words or one.name.lower() not in map(str.lower, parsed.bound):
                raise self._unknown(one.name)
        return found

    def _unknown(self, name: str) -> ServeError:
        if self._caller.may(READ_VIEW, name):
            return NotThere(f"there is no view {name[:100]!r}", hint="see what there is: GET /v1/views")
        return NotAllowed(
            f"the token does not allow {READ_VIEW}:{name[:100]}",
            hint="give it the scope: headrace token create NAME --scope SCOPE",
        )

    def view(self, name: str) -> View:
        """That answers to a name of a statement now."""
        return self._served.views.answering(self.spelled(name) or name)

    def spelled(self, name: str) -> str | None:
        """Of the views that the caller may read. SQL does not tell large letters from small ones."""
        alike = [
            one
            for one in self._served.views.names
            if one.lower() == name.lower() and self._caller.may(READ_VIEW, one)
        ]
        if name in alike:
            return name
        if len(alike) > 1:
            raise SqlRefused(f"{name[:100]!r} may be {' or '.join(alike)}", hint="write it in double quotes")
        return alike[0] if alike else None


def source_of(named: Named, app: str, data: Path) -> Source:
    view = named.view
    match view.store:
        case Postgres(url, schema):
            place, under = url, schema
        case Redis(url):
            place, under = url, prefix_of(view, app)
        case SQLite() | Search() | Delta():
            place, under = str(file_of(view, app, data)), ""
        case OnRead():
            raise QuestionRefused(
                f"view {view.name!r} is computed on read, and SQL is answered from stores",
                hint="read its rows, or keep it in a store: app.view(..., store=SQLite())",
            )
    kind = type(view.store).__name__.lower()
    return Source(named.name, view.name, kind, place, under, named.words)
