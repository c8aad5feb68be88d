"""Members: visits to pages, each with the profile of its member at that time.

visits         events: topic A
profiles       a table: the members and their plans
known_visits   topic B: each visit, joined with its member's profile

headrace run examples.members:app
python -m examples.members.story
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import DataFrame

from headrace import App
from headrace.stores import SQLite

app = App("members")


@dataclass(frozen=True)
class Visit:
    visit_id: str
    member_id: str
    page: str
    at: datetime


@dataclass(frozen=True)
class Profile:
    member_id: str
    name: str
    plan: str


visits = app.topic("member-visits", Visit, key="visit_id", time="at", late=timedelta(hours=1))
profiles = app.table("member-profiles", Profile, key="member_id")
known_visits = app.topic("member-known-visits", key="visit_id")


@app.flow(reads=[visits, profiles], writes=known_visits)
def know_visits(visits: DataFrame, profiles: DataFrame) -> DataFrame:
    """Join the profile from a local table, which is updated from its topic. The flow does not call a service."""
    known = profiles.select("member_id", "plan")
    return visits.join(known, "member_id", "left").select("visit_id", "member_id", "page", "plan")


app.view("known_visits", known_visits, store=SQLite())
