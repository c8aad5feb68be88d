"""Fault X25, SQL injection: a client may write anything into a filter, a sort, a key, a cursor or a statement, but
reads only the views that its token grants, and changes nothing.

A real server has views in SQLite, a Delta table and a full-text index. The token may read three of them; two more are
in the same stores. A run sends about a hundred disguised statements from a corpus, and random ones: over HTTP, as
subscriptions to a result, and in PostgreSQL's protocol (simple, extended and cursors). What must hold:

- no response, error, header or setting shows a row, a name or the count of a hidden view, or a file; a hidden view gets
  the same response as a missing view, word for word
- a refusal has the code that the corpus names; a statement that does not end is stopped by the time, row or memory
  limit, with the code of that limit; only a statement that needs too much memory ends the process that runs it
- the stores, the log and the files beside them stay the same, byte for byte
- another client gets correct responses throughout
"""

from __future__ import annotations

import base64
import random
import re
import urllib.parse
from collections.abc import Callable
from functools import partial

from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.serve.hostile_clients import HttpClient, Reply, Unanswered, WireClient
from faults.serve.injection_app import GHOST, GRANTED, HIDDEN
from faults.serve.injection_filters import ATTEMPTS, ROW_CALLS, Attempt, mix
from faults.serve.injection_scene import ROWS_MAX, InjectionScene, injection_scene, row_values
from faults.serve.injection_statements import CALLS, CATALOGUE, STATEMENTS, Statement, disguise, mutate

__all__ = ["UNPROTECTED", "run"]

FAULT = "X25"
UNPROTECTED = {
    "sql-authorizer": r"^a response shows a file",
    "sql-steps": r"did not end within [\d.]+ s: TimeoutError",
    "sql-rows": r"^a response has \d+ rows",
    "view-names": r"^a response shows rows of a view",
    "column-names": r"^a response shows rows of a view",
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
"""The documented SQLSTATE of each error code."""
_COMMANDS = re.compile(r"(set|begin|commit|rollback|reset|show|deallocate|execute|prepare)\b", re.I)
"""In PostgreSQL's protocol, the server executes these commands without the SQL engine."""
_HTTP_ONLY = {
    "SELECT 1; SELECT 2",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM information_schema.tables",
}
_KINDS = {
    "refused": 20, "outside": 9, "file": 3, "hidden": 10, "bound": 1, "endless": 2, "growing": 1, "too much": 4,
    "unreadable": 8, "deep": 1, "harmless": 6,
}  # fmt: skip
"""The number of statements of each kind per hundred cases. The other cases are filters, catalogue queries and random
statements.
"""
_CHANNELS = ("http", "http", "arrow", "changes", "simple", "simple", "extended", "cursor")
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
    """``patience_s`` is the time after which a response counts as endless."""
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
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
        differing = sorted(
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        )
        outcome.problems += [f"{name} has changed" for name in differing]
        outcome.problems += [
            f"the server logged an unexpected exception:\n{fault}"
            for fault in scene.server.unexpected_exceptions()
        ]
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
        """Run the cases. Stop as soon as a problem that matches ``finding`` is reported. A run without a protection
        must report one.
        """
        steps = self._steps(cases)
        for number, step in enumerate(steps, 1):
            step()
            if finding and self._outcome.has_finding(finding):
                return
            if number % _GOOD_EVERY == 0 or number == len(steps):
                self._expect_good_client()

    def _steps(self, cases: int) -> list[Callable[[], None]]:
        share = cases / CASES
        steps: list[Callable[[], None]] = []
        for kind, count in _KINDS.items():
            sample_size = max(1, round(count * share))
            sampled = [STATEMENTS[kind][0], *self._rng.choices(STATEMENTS[kind], k=sample_size - 1)]
            steps += [self._statement(statement) for statement in sampled]
        attempts = [ATTEMPTS[0], *self._rng.choices(ATTEMPTS, k=round(12 * share))]
        steps += [partial(self._attempt, attempt) for attempt in attempts]
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
        channel = self._choose_channel(statement)
        hidden = self._rng.choice(HIDDEN)

        def step() -> None:
            sent = self._scene.spell(text, hidden)
            reply = self._call(channel, sent)
            if reply is None:
                return
            self._judge_code(channel, sent, reply, statement.codes)
            if statement.kind in ("hidden", "bound"):
                self._compare_with_missing_view(
                    channel, text, hidden, reply, compares_text=statement.kind == "hidden"
                )

        return step

    def _choose_channel(self, statement: Statement) -> str:
        """Choose a connection and a form for the statement."""
        is_http = statement.text in _HTTP_ONLY or _COMMANDS.match(statement.text) is not None
        channels = [channel for channel in _CHANNELS if not is_http or channel in ("http", "arrow")]
        if statement.kind not in ("refused", "outside", "file", "hidden"):
            # These statements can succeed. A subscription then sends results as events and does not end.
            channels.remove("changes")
        if (
            statement.kind in ("refused", "unreadable", "deep", "harmless", "too much")
            and "cursor" in channels
        ):
            channels.remove("cursor")
        return self._rng.choice(channels)

    def _call(self, channel: str, text: str, values: tuple[str, ...] = ()) -> Reply | None:
        self._outcome.hits += 1
        try:
            reply = self._send(channel, text, values)
        except Unanswered as error:
            self._report_problem(
                f"{channel} {text!r:.100} did not end within {self._patience_s:g} s: {error}"
            )
            self._reopen()
            return None
        except ValueError as error:
            self._report_problem(f"{channel} {text!r:.100}: the response is not JSON: {error}")
            return None
        self._judge_secrets(channel, " ".join((text, *values)), reply)
        return reply

    def _send(self, channel: str, text: str, values: tuple[str, ...]) -> Reply:
        match channel:
            case "http" | "changes":
                path = "/v1/sql" if channel == "http" else "/v1/sql/changes"
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
        channel = self._rng.choice(("http", "arrow", "extended", "simple"))
        if channel in ("simple", "extended"):
            text = text.replace("\0", " ")
        reply = self._call(channel, text)
        if reply is None:
            return
        if channel in ("simple", "extended"):
            # Many of these are commands of the protocol, each with its own SQLSTATE.
            if reply.code.startswith("HR-"):
                self._judge_code(channel, text, reply, CALLS)
            elif reply.code == "XX000":
                self._report_problem(f"{channel} {text!r:.100} got XX000: {reply.text!r:.200}")
            self._wire.simple("ROLLBACK")
        else:
            self._judge_code(channel, text, reply, CALLS)

    def _catalogue(self) -> None:
        text = self._scene.spell(self._rng.choice(CATALOGUE), self._rng.choice(HIDDEN))
        self._call(self._rng.choice(("simple", "extended", "cursor")), text)

    def _login(self) -> None:
        """SQL in the user and database names must stay text, also in the catalogue."""
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
        except Unanswered as error:
            self._report_problem(f"a login as {user!r} of {database!r} got no response: {error}")
            return
        self._outcome.hits += 1
        self._judge_secrets("login", user + database, reply)
        if reply.rows != [[user, database]]:
            self._report_problem(
                f"a login as {user!r} of {database!r} is shown as {reply.code} {reply.rows!r:.200}"
            )

    def _value(self) -> None:
        """A parameter must stay text."""
        payload = self._rng.choice(_PAYLOADS)
        channel = self._rng.choice(("http", "extended"))
        reply = self._call(channel, "SELECT $1, count(*) FROM notes WHERE author <> $1", (payload,))
        if reply is None:
            return
        rows = [[str(value) for value in row] for row in reply.rows or []]
        if rows != [[payload, str(len(self._scene.notes))]]:
            self._report_problem(
                f"{channel}: the parameter {payload!r} returned {reply.code} {reply.rows!r:.100}"
            )

    # Rows of a view

    def _attempt(self, attempt: Attempt) -> None:
        # Each store has its own query language. The corpus is written for SQLite's.
        view = "notes" if attempt is ATTEMPTS[0] else self._rng.choice(GRANTED)
        reply = self._rows(view, attempt.name, attempt.text)
        if reply is None:
            return
        if reply.code != attempt.code:
            self._report_problem(
                f"{view} {attempt.name}={attempt.text!r:.100}: {reply.code or 'success'}"
                f" instead of {attempt.code or 'success'}: {reply.text!r:.200}"
            )
        elif attempt.rows:
            expected_count = len(self._scene.notes) if attempt.rows == "all" else 0
            if len(reply.rows or []) != expected_count:
                self._report_problem(
                    f"{view} {attempt.name}={attempt.text!r:.100}: {len(reply.rows or [])} rows"
                )

    def _random_filter(self) -> None:
        name, text = mix(self._rng)
        view = self._rng.choice(GRANTED)
        reply = self._rows(view, name, text)
        if reply is not None and reply.code not in ROW_CALLS:
            self._report_problem(f"{view} {name}={text!r:.100} got {reply.code}: {reply.text!r:.200}")

    def _rows(self, view: str, name: str, text: str) -> Reply | None:
        self._outcome.hits += 1
        path = f"/v1/views/{view}/rows"
        try:
            by_key = f"{path}/{urllib.parse.quote(text, safe='')}"
            reply = self._http.get(by_key) if name == "key" else self._http.get(path, {name: text})
        except Unanswered as error:
            self._report_problem(
                f"{view} {name}={text!r:.100} did not end within {self._patience_s:g} s: {error}"
            )
            return None
        self._judge_secrets(view, text, reply)
        note_rows = {tuple(note.values()) for note in self._scene.notes}
        unexpected_rows = [row for row in reply.rows or [] if row_values(row) not in note_rows]
        if unexpected_rows:
            self._report_problem(
                f"{view} {name}={text!r:.100} returned rows that the view does not have: {unexpected_rows[:2]}"
            )
        return reply

    # The oracle

    def _judge_secrets(self, channel: str, sent: str, reply: Reply) -> None:
        """Check for hidden data. A name that the attacker itself wrote reveals nothing."""
        text, statement = reply.text.lower(), f"{sent} {_decoded_cursor(sent)}".lower()
        for secret, what in self._scene.secrets.items():
            if secret in text and secret not in statement:
                self._report_problem(f"a response shows {what} that was not granted: {channel} {sent!r:.150}")
                return
        if re.search(rf"(?<![\w.]){self._scene.count}(?![\w.])", text):
            self._report_problem(
                f"a response shows the count of a view that was not granted: {channel} {sent!r:.150}"
            )
        if len(reply.rows or []) > ROWS_MAX:
            self._report_problem(
                f"a response has {len(reply.rows or [])} rows, but the maximum is {ROWS_MAX}: {sent!r:.100}"
            )

    def _judge_code(self, channel: str, sent: str, reply: Reply, codes: frozenset[str]) -> None:
        if reply.code not in codes:
            expected = " or ".join(sorted(code or "success" for code in codes))
            self._report_problem(
                f"{channel} {sent!r:.150}: {reply.code or 'success'} instead of {expected}: {reply.text!r:.300}"
            )
        elif channel in ("simple", "extended", "cursor") and reply.status != _STATES.get(
            reply.code, reply.status
        ):
            self._report_problem(f"{channel} {sent!r:.100}: {reply.code} has the SQLSTATE {reply.status}")

    def _compare_with_missing_view(
        self, channel: str, text: str, hidden: str, reply: Reply, *, compares_text: bool
    ) -> None:
        """A missing view must get the same code, and with ``compares_text`` the same text."""
        missing_reply = self._call(channel, self._scene.spell(text, GHOST[hidden]))
        if missing_reply is None:
            return
        names = re.compile(f"{hidden}|{GHOST[hidden]}", re.I)
        texts = [names.sub("NAME", _without_volatile_parts(answer.text)) for answer in (reply, missing_reply)]
        if (reply.status, reply.code) != (missing_reply.status, missing_reply.code) or (
            compares_text and texts[0] != texts[1]
        ):
            self._report_problem(
                f"{channel} {text!r:.100} reveals that {hidden} exists: {texts[0]!r:.200} instead of {texts[1]!r:.200}"
            )

    def _expect_good_client(self) -> None:
        expected_rows = [tuple(note.values()) for note in self._scene.notes]
        try:
            page = self._good_http.get("/v1/views/notes/rows", {"limit": "100"})
            selected = self._good_http.post("/v1/sql", {"sql": "SELECT * FROM notes ORDER BY note_id"})
            wire = self._good_wire.simple("SELECT * FROM notes ORDER BY note_id")
        except Unanswered as error:
            self._report_problem(f"a good client got no response: {error}")
            return
        for channel, reply in (("rows", page), ("SQL", selected)):
            if [row_values(row) for row in reply.rows or []] != expected_rows:
                self._report_problem(
                    f"a good client got a wrong response by {channel}: {reply.code} {reply.text!r:.200}"
                )
        if [tuple(row) for row in wire.rows or []] != [(*row[:2], str(row[2])) for row in expected_rows]:
            self._report_problem(
                f"a good client got a wrong response by PostgreSQL's protocol: {wire.text!r:.200}"
            )

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)


def _without_volatile_parts(text: str) -> str:
    """Remove what differs between any two responses."""
    return re.sub(r"(?im)^(date|headrace-request-id|content-length):.*$|character \d+|LINE \d+.*", "", text)


def _decoded_cursor(text: str) -> str:
    """Return the text of a cursor, which is JSON in URL-safe base64; empty if the text is no cursor."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode(
            "utf-8", "replace"
        )
    except ValueError:
        return ""
