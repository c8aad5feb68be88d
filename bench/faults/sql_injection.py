"""X25, SQL injection: whatever a client writes into a filter, a sort, a key, a cursor or a statement, it reads the
views that its token grants, and nothing else happens.

A real server has views in SQLite, a Delta table and a full-text index. The token may read three of them; two more are
in the same stores. A run sends about a hundred statements from a corpus, disguised, and others that are put together at
random: by HTTP, as results that are followed, and in PostgreSQL's protocol, simple, extended and as cursors. What must
hold:

- no answer, error, header or setting shows a row, a name or the count of a hidden view, or a file; a hidden view is
  answered as one that does not exist, in the same words
- what is refused is refused with the code that the corpus names; what does not end is stopped by the time, the row or
  the memory limit, with its code; nothing ends the process that answers but a statement that needs too much memory
- the stores, the log and the files beside them are the same to the last byte
- another client is answered rightly throughout
"""

from __future__ import annotations

import random
import re
import urllib.parse
from collections.abc import Callable

from bench.faults.hostile_clients import HttpClient, Reply, Unanswered, WireClient
from bench.faults.injection_app import GHOST, GRANTED, HIDDEN
from bench.faults.injection_filters import ATTEMPTS, ROW_CALLS, Attempt, mix
from bench.faults.injection_scene import ROWS_MAX, InjectionScene, injection_scene, row_values
from bench.faults.injection_statements import CALLS, CATALOGUE, STATEMENTS, Statement, disguise, mutate
from bench.faults.outcome import Outcome
from bench.faults.workplace import workplace

__all__ = ["UNPROTECTED", "run"]

FAULT = "X25"
UNPROTECTED = {
    "sql-authorizer": r"^an answer shows a file",
    "sql-steps": r"did not end within [\d.]+ s: TimeoutError",
    "sql-rows": r"^an answer has \d+ rows",
    "view-names": r"^an answer shows rows of a view",
    "column-names": r"^an answer shows rows of a view",
}
CASES = 100
_PATIENCE_S = 20.0
_GOOD_EVERY = 25
_STATES = {
    "HR-SERVE-SQL-REFUSED": "25006",
    "HR-SERVE-SQL": "42601",
    "HR-SERVE-SQL-LIMIT": "54000",
    "HR-SERVE-SQL-TIME": "57014",
    "HR-SERVE-SQL-ENDED": "53200",
    "HR-SERVE-NOT-THERE": "42P01",
    "HR-SERVE-SCOPE": "42501",
}
"""What a client of PostgreSQL is told, as the documentation has it."""
_COMMANDS = re.compile(r"(set|begin|commit|rollback|reset|show|deallocate|execute|prepare)\b", re.I)
"""In PostgreSQL's protocol these are answered without the engine."""
_HTTP_ONLY = {
    "SELECT 1; SELECT 2",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM information_schema.tables",
}
_KINDS = {
    "refused": 20, "outside": 9, "file": 3, "hidden": 10, "bound": 1, "endless": 2, "growing": 1, "too much": 4,
    "unreadable": 8, "deep": 1, "harmless": 6,
}  # fmt: skip
"""How many statements of each kind are part of a hundred; the rest are filters, catalogues and what chance makes."""
_WAYS = ("http", "http", "arrow", "changes", "simple", "simple", "extended", "cursor")
_PAYLOADS = (
    "x'; DROP TABLE notes; --",
    '" OR ""="',
    "$1",
    "'||(SELECT pin FROM vault_accounts)||'",
    "\u02bc OR 1=1",
)


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "sql-authorizer",
    cases: int = CASES,
    patience_s: float = _PATIENCE_S,
) -> Outcome:
    """``patience_s`` is how long an answer may take before it counts as one that does not end."""
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        injection_scene(home, rng, "" if protected else without) as scene,
    ):
        before = scene.state()
        attack = _Attack(scene, rng, outcome, patience_s)
        finding = "" if protected else UNPROTECTED[without]
        try:
            attack.run(cases, finding)
        finally:
            attack.close()
        outcome.cases = outcome.hits
        after = scene.state()
        odd = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        outcome.problems += [f"{name} is not what it was" for name in odd]
        outcome.problems += [f"the server did not foresee:\n{one}" for one in scene.server.faults()]
        outcome.peak_rss_mb = scene.server.rss_mb("VmHWM")
    return outcome


class _Attack:
    def __init__(
        self, scene: InjectionScene, rng: random.Random, outcome: Outcome, patience_s: float
    ) -> None:
        self._scene = scene
        self._rng = rng
        self._outcome = outcome
        self._patience_s = patience_s
        port, pg_port = scene.server.port, scene.server.pg_port
        self._http = HttpClient(port, scene.attacker, patience_s)
        self._wire = WireClient(pg_port, scene.attacker, patience_s)
        self._good_http = HttpClient(port, scene.good, patience_s * 3)
        self._good_wire = WireClient(pg_port, scene.good, patience_s * 3)

    def close(self) -> None:
        for client in (self._http, self._wire, self._good_http, self._good_wire):
            client.close()

    def run(self, cases: int, finding: str) -> None:
        """Ends at the finding that a run without a protection is about."""
        steps = self._steps(cases)
        for number, step in enumerate(steps, 1):
            step()
            if finding and self._outcome.shows(finding):
                return
            if number % _GOOD_EVERY == 0 or number == len(steps):
                self._expect_good_client()

    def _steps(self, cases: int) -> list[Callable[[], None]]:
        share = cases / CASES
        steps: list[Callable[[], None]] = []
        for kind, count in _KINDS.items():
            wanted = max(1, round(count * share))
            chosen = [STATEMENTS[kind][0], *self._rng.choices(STATEMENTS[kind], k=wanted - 1)]
            steps += [self._statement(one) for one in chosen]
        attempts = [ATTEMPTS[0], *self._rng.choices(ATTEMPTS, k=round(12 * share))]
        steps += [lambda one=one: self._attempt(one) for one in attempts]  # type: ignore[misc]
        steps += [self._catalogue, self._login, self._value]
        while len(steps) < cases:
            steps.append(self._rng.choice((self._random_statement, self._random_filter)))
        self._rng.shuffle(steps)
        return steps

    # SQL

    def _statement(self, statement: Statement) -> Callable[[], None]:
        text = statement.text
        if statement.kind not in ("too much", "deep", "unreadable"):
            text = disguise(self._rng, text)
        way = self._way(statement)
        hidden = self._rng.choice(HIDDEN)

        def step() -> None:
            sent = self._scene.spell(text, hidden)
            reply = self._ask(way, sent)
            if reply is None:
                return
            self._judge_code(way, sent, reply, statement.codes)
            if statement.kind in ("hidden", "bound"):
                self._judge_twin(way, text, hidden, reply, in_words=statement.kind == "hidden")

        return step

    def _way(self, statement: Statement) -> str:
        """One that knows the statement."""
        is_http = statement.text in _HTTP_ONLY or _COMMANDS.match(statement.text) is not None
        ways = [one for one in _WAYS if not is_http or one in ("http", "arrow")]
        if statement.kind not in ("refused", "outside", "file", "hidden"):
            # The result of a statement that runs is told in events.
            ways.remove("changes")
        if statement.kind in ("refused", "unreadable", "deep", "harmless", "too much") and "cursor" in ways:
            ways.remove("cursor")
        return self._rng.choice(ways)

    def _ask(self, way: str, text: str, values: tuple[str, ...] = ()) -> Reply | None:
        self._outcome.hits += 1
        try:
            reply = self._send(way, text, values)
        except Unanswered as gone:
            self._object(f"{way} {text!r:.100} did not end within {self._patience_s:g} s: {gone}")
            self._reopen()
            return None
        except ValueError as error:
            self._object(f"{way} {text!r:.100}: the answer is not JSON: {error}")
            return None
        self._judge_secrets(way, text, reply)
        return reply

    def _send(self, way: str, text: str, values: tuple[str, ...]) -> Reply:
        match way:
            case "http" | "changes":
                path = "/v1/sql" if way == "http" else "/v1/sql/changes"
                return self._http.post(path, {"sql": text, "parameters": list(values)})
            case "arrow":
                return self._http.post("/v1/sql?format=arrow", {"sql": text, "parameters": list(values)})
            case "extended":
                return self._wire.extended(text, values)
            case "cursor":
                return self._wire.cursor(text)
        return self._wire.simple(text)

    def _reopen(self) -> None:
        self._wire.close()
        self._wire = WireClient(self._scene.server.pg_port, self._scene.attacker, self._patience_s)

    def _random_statement(self) -> None:
        text = self._scene.spell(mutate(self._rng), self._rng.choice(HIDDEN))
        way = self._rng.choice(("http", "arrow", "extended", "simple"))
        if way in ("simple", "extended"):
            text = text.replace("\0", " ")
        reply = self._ask(way, text)
        if reply is None:
            return
        if way in ("simple", "extended"):
            # Many of them are commands of the protocol, each with states of its own.
            if reply.code.startswith("HR-"):
                self._judge_code(way, text, reply, CALLS)
            elif reply.code == "XX000":
                self._object(f"{way} {text!r:.100} was answered with XX000: {reply.text!r:.200}")
            self._wire.simple("ROLLBACK")
        else:
            self._judge_code(way, text, reply, CALLS)

    def _catalogue(self) -> None:
        text = self._scene.spell(self._rng.choice(CATALOGUE), self._rng.choice(HIDDEN))
        self._ask(self._rng.choice(("simple", "extended", "cursor")), text)

    def _login(self) -> None:
        """A user and a database that would be SQL are texts, also where the catalogue has them."""
        user, database = self._rng.sample(_PAYLOADS, 2)
        try:
            client = WireClient(
                self._scene.server.pg_port,
                self._scene.attacker,
                self._patience_s,
                user=user,
                database=database,
            )
            reply = client.simple("SELECT rolname, datname FROM pg_roles, pg_database")
            client.close()
        except Unanswered as gone:
            self._object(f"a login as {user!r} of {database!r} was not answered: {gone}")
            return
        self._outcome.hits += 1
        self._judge_secrets("login", user + database, reply)
        if reply.rows != [[user, database]]:
            self._object(f"a login as {user!r} of {database!r} is shown as {reply.rows!r:.200}")

    def _value(self) -> None:
        """A parameter stays what it is."""
        payload = self._rng.choice(_PAYLOADS)
        way = self._rng.choice(("http", "extended"))
        reply = self._ask(way, "SELECT $1, count(*) FROM notes WHERE author <> $1", (payload,))
        if reply is None:
            return
        rows = [[str(one) for one in row] for row in reply.rows or []]
        if rows != [[payload, str(len(self._scene.notes))]]:
            self._object(f"{way}: the parameter {payload!r} gave {reply.code} {reply.rows!r:.100}")

    # Rows of a view

    def _attempt(self, attempt: Attempt) -> None:
        # Each store has a language of its own behind it; SQLite's is the one that the corpus is written in.
        view = "notes" if attempt is ATTEMPTS[0] else self._rng.choice(GRANTED)
        reply = self._rows(view, attempt.name, attempt.text)
        if reply is None:
            return
        if reply.code != attempt.code:
            self._object(
                f"{view} {attempt.name}={attempt.text!r:.100}: {reply.code or 'answered'},"
                f" and not {attempt.code or 'answered'}: {reply.text!r:.200}"
            )
        elif attempt.rows:
            wanted = len(self._scene.notes) if attempt.rows == "all" else 0
            if len(reply.rows or []) != wanted:
                self._object(f"{view} {attempt.name}={attempt.text!r:.100}: {len(reply.rows or [])} rows")

    def _random_filter(self) -> None:
        name, text = mix(self._rng)
        view = self._rng.choice(GRANTED)
        reply = self._rows(view, name, text)
        if reply is not None and reply.code not in ROW_CALLS:
            self._object(f"{view} {name}={text!r:.100} was answered with {reply.code}: {reply.text!r:.200}")

    def _rows(self, view: str, name: str, text: str) -> Reply | None:
        self._outcome.hits += 1
        path = f"/v1/views/{view}/rows"
        try:
            by_key = f"{path}/{urllib.parse.quote(text, safe='')}"
            reply = self._http.get(by_key) if name == "key" else self._http.get(path, {name: text})
        except Unanswered as gone:
            self._object(f"{view} {name}={text!r:.100} did not end within {self._patience_s:g} s: {gone}")
            return None
        self._judge_secrets(view, text, reply)
        known = {tuple(note.values()) for note in self._scene.notes}
        strangers = [row for row in reply.rows or [] if row_values(row) not in known]
        if strangers:
            self._object(f"{view} {name}={text!r:.100} gave rows that it does not have: {strangers[:2]}")
        return reply

    # The oracle

    def _judge_secrets(self, way: str, sent: str, reply: Reply) -> None:
        """A name that the attacker wrote itself tells it nothing."""
        text, asked = reply.text.lower(), sent.lower()
        for secret, what in self._scene.secrets.items():
            if secret in text and secret not in asked:
                self._object(f"an answer shows {what} that was not granted: {way} {sent!r:.150}")
                return
        if re.search(rf"(?<![\w.]){self._scene.count}(?![\w.])", text):
            self._object(f"an answer shows the count of a view that was not granted: {way} {sent!r:.150}")
        if len(reply.rows or []) > ROWS_MAX:
            self._object(
                f"an answer has {len(reply.rows or [])} rows, and {ROWS_MAX} are the most: {sent!r:.100}"
            )

    def _judge_code(self, way: str, sent: str, reply: Reply, codes: frozenset[str]) -> None:
        if reply.code not in codes:
            told = " or ".join(sorted(one or "answered" for one in codes))
            self._object(
                f"{way} {sent!r:.150}: {reply.code or 'answered'}, and not {told}: {reply.text!r:.300}"
            )
        elif way in ("simple", "extended", "cursor") and reply.status != _STATES.get(
            reply.code, reply.status
        ):
            self._object(f"{way} {sent!r:.100}: {reply.code} has the state {reply.status}")

    def _judge_twin(self, way: str, text: str, hidden: str, reply: Reply, *, in_words: bool) -> None:
        """A view that does not exist is answered for in the same way, and ``in_words``."""
        twin = self._ask(way, self._scene.spell(text, GHOST[hidden]))
        if twin is None:
            return
        names = re.compile(f"{hidden}|{GHOST[hidden]}", re.I)
        told = [names.sub("NAME", _steady(one.text)) for one in (reply, twin)]
        if (reply.status, reply.code) != (twin.status, twin.code) or (in_words and told[0] != told[1]):
            self._object(
                f"{way} {text!r:.100} tells that {hidden} exists: {told[0]!r:.200}, not {told[1]!r:.200}"
            )

    def _expect_good_client(self) -> None:
        wanted = [tuple(note.values()) for note in self._scene.notes]
        try:
            page = self._good_http.get("/v1/views/notes/rows", {"limit": "100"})
            told = self._good_http.post("/v1/sql", {"sql": "SELECT * FROM notes ORDER BY note_id"})
            wire = self._good_wire.simple("SELECT * FROM notes ORDER BY note_id")
        except Unanswered as gone:
            self._object(f"a good client was not answered: {gone}")
            return
        for way, reply in (("rows", page), ("SQL", told)):
            if [row_values(row) for row in reply.rows or []] != wanted:
                self._object(f"a good client was answered wrongly by {way}: {reply.code} {reply.text!r:.200}")
        if [tuple(row) for row in wire.rows or []] != [(*row[:2], str(row[2])) for row in wanted]:
            self._object(f"a good client was answered wrongly by PostgreSQL's protocol: {wire.text!r:.200}")

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)


def _steady(text: str) -> str:
    """Without what differs between any two answers."""
    return re.sub(r"(?im)^(date|headrace-request-id|content-length):.*$|character \d+|LINE \d+.*", "", text)
