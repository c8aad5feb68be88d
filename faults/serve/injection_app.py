"""The target of SQL injection: notes, which a token may read, and accounts, which it may not read.

Both are in the same stores, so that a statement that bypasses the server's checks finds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace import App
from headrace.stores import Delta, Search

__all__ = ["GHOST", "GRANTED", "HIDDEN", "Account", "Note", "app"]

GRANTED = ("notes", "notes_lake", "notes_words")
"""The views that the token may read: in SQLite, in a Delta table and in a full-text index."""
HIDDEN = ("vault_accounts", "vault_lake")
GHOST = {"vault_accounts": "quiet_accounts", "vault_lake": "quiet_lake"}
"""For each hidden view, the name of a missing view. The responses to both must be the same."""


@dataclass(frozen=True)
class Note:
    note_id: str
    author: str
    stars: int


@dataclass(frozen=True)
class Account:
    holder: str
    pin: str
    funds: int


app = App("shop")
_notes = app.table("notes-topic", Note, key="note_id")
_accounts = app.table("accounts-topic", Account, key="holder")
app.view("notes", _notes)
app.view("notes_lake", _notes, store=Delta())
app.view("notes_words", _notes, store=Search(fields=["author"]))
app.view("vault_accounts", _accounts)
app.view("vault_lake", _accounts, store=Delta())
