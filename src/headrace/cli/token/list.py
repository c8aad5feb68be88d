"""``headrace token list``."""

from __future__ import annotations

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import Data

__all__ = ["list_tokens"]


@verb(
    "list",
    examples="""
    headrace token list
    headrace token list --json
    """,
    shared=("as_json", "quiet", "verbose", "settings_file"),
)
def list_tokens(session: Session, data: Data = None) -> None:
    """List the tokens: for whom, what they allow, and until when."""
    from datetime import UTC, datetime

    from headrace.cli.view.options import data_dir
    from headrace.clock import SystemClock
    from headrace.serve.tokens import TokenBook, tokens_path

    now = SystemClock().now_ms()

    def time(ms: int | None) -> str | None:
        return None if ms is None else datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    rows = [
        {
            "name": one.name,
            "id": one.id,
            "state": one.state(now),
            "scopes": one.scopes,
            "created": time(one.created_ms),
            "expires": time(one.expires_ms),
            "revoked": time(one.revoked_ms),
        }
        for one in TokenBook(tokens_path(data_dir(session, data))).tokens()
    ]
    session.out.table(rows, empty="no tokens")
