"""``headrace group describe``."""

from __future__ import annotations

from typing import Any

from headrace.cli.errors import GroupUnknown
from headrace.cli.parameters import Groups
from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.clock import SystemClock

__all__ = ["describe"]


@verb(
    "describe",
    examples="""
    headrace group describe billing
    headrace group describe billing shipping --json
    """,
)
def describe(session: Session, names: Groups) -> None:
    """Describe groups, their members and partitions.

    Each partition comes with the committed and the end offset, the lag, and its age in seconds.
    """
    from headrace.cli.client import open_admin
    from headrace.cli.standing import age_of_next, describe_group, standings

    admin = open_admin(session)
    described = {name: describe_group(session, admin, name) for name in dict.fromkeys(names)}
    holders = {name: _holders(group) for name, group in described.items()}
    found = standings(session, admin, list(described), assigned=holders)
    ages = age_of_next(session, found, SystemClock().now_ms())
    for index, (name, group) in enumerate(described.items()):
        rows = []
        for one in found:
            if one.group != name:
                continue
            row = one.row()
            del row["group"]
            row["age_s"] = ages[one]
            member = holders[name].get((one.topic, one.partition))
            row["member"] = None if member is None else member.member_id
            row["client"] = None if member is None else member.client_id
            row["host"] = None if member is None else member.host
            rows.append(row)
        if not rows and not group.members:
            raise GroupUnknown(name)
        total = sum(one.lag or 0 for one in found if one.group == name)
        summary = {
            "group": name,
            "state": group.state.name.lower().replace("_", "-"),
            "type": group.type.name.lower(),
            "assignor": group.partition_assignor or None,
            "coordinator": None if group.coordinator is None else group.coordinator.id,
            "members": len(group.members),
            "total_lag": total,
        }
        if session.out.as_json:
            session.out.json_line({**summary, "partitions": rows, "member_list": _members(group)})
            continue
        if index:
            session.out.text("")
        for label, value in summary.items():
            session.out.text(f"{label.replace('_', ' '):<12}{'-' if value is None else value}")
        session.out.text("")
        if not any(row["gone"] for row in rows):
            for row in rows:
                del row["gone"]
        session.out.table(rows)
    session.out.flush()


def _holders(group: Any) -> dict[tuple[str, int], Any]:
    """Which member reads which partition."""
    return {
        (one.topic, one.partition): member
        for member in group.members
        for one in (member.assignment.topic_partitions if member.assignment else ())
    }


def _members(group: Any) -> list[dict[str, object]]:
    return [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.host,
            "instance": member.group_instance_id,
            "partitions": len(member.assignment.topic_partitions) if member.assignment else 0,
        }
        for member in group.members
    ]
