"""``headrace token``: one verb per file."""

from __future__ import annotations

from headrace.cli.verb import Noun, noun

__all__ = ["command"]


def command() -> Noun:
    from headrace.cli.token.create import create
    from headrace.cli.token.list import list_tokens
    from headrace.cli.token.revoke import revoke

    return noun(
        "token", "Create, list and revoke the tokens of headrace serve.", [create, list_tokens, revoke]
    )
