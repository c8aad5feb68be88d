"""The check before a command starts, rebuilds or switches anything: does the history of the log fit the schemas?

The check reads the recorded schemas. It reads a sample of a topic only if its schema or its upcasters differ from the
newest recorded version: a recorded version was checked before it was recorded. ``record`` writes new versions. It is
called when the command is about to start the app.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.generations import all_generations
from headrace.client.recorded_schemas import OwnedVersions, owned_versions, record_version
from headrace.client.sample import sample
from headrace.model.declarations import Declared, Topic, source_topics
from headrace.model.errors import AppError, AppMistakes
from headrace.model.schema_version import (
    SchemaVersion,
    next_version,
    used_versions,
    versions_of_id,
)
from headrace.ops.schemas.history import TopicHistory, judge

__all__ = ["HistoryCheck", "check_history", "expect_history_fits"]


@dataclass(slots=True)
class HistoryCheck:
    app: Declared
    histories: list[TopicHistory] = field(default_factory=list)
    """The topics of which a sample was read."""
    new_versions: list[SchemaVersion] = field(default_factory=list)
    """The versions that the app must record. Versions of topics that another app owns are not among them."""
    owner_mistakes: list[AppError] = field(default_factory=list)

    @property
    def mistakes(self) -> list[AppError]:
        return self.owner_mistakes + [mistake for history in self.histories for mistake in history.mistakes]

    def notes(self) -> Iterator[str]:
        """Yield a line for each topic with sampled records that were invalid before, and remain so."""
        for history in self.histories:
            if history.invalid:
                yield (
                    f"topic {history.topic.name!r}: {history.invalid} of {len(history.sample.records)} sampled records"
                    " do not fit its schema and become dead letters"
                )

    def record(self, cluster: Cluster) -> None:
        """Record the new versions of the topics that exist."""
        for version in self.new_versions:
            info = cluster.topic(version.topic)
            if info is not None:
                # The topic may have been created since the check.
                version = msgspec.structs.replace(version, topic_id=info.id)
                record_version(cluster, self.app.name, version)


def expect_history_fits(
    cluster: Cluster, app: Declared, now_ms: int, *, topics: Sequence[Topic] | None = None
) -> HistoryCheck:
    """Raise ``AppMistakes`` if records of the log do not fit the app's schemas. Writes nothing."""
    check = check_history(cluster, app, now_ms, topics=topics)
    if check.mistakes:
        raise AppMistakes(check.mistakes)
    return check


def check_history(
    cluster: Cluster, app: Declared, now_ms: int, *, topics: Sequence[Topic] | None = None
) -> HistoryCheck:
    """Compare the schemas of ``topics`` (default: all topics that no flow of the app writes) with the log."""
    chosen = source_topics(app) if topics is None else topics
    check = HistoryCheck(app)
    if chosen:
        owned = owned_versions(cluster, app.name, [topic.name for topic in chosen])
        check.owner_mistakes = _owner_mistakes(cluster, chosen, app.name, owned)
        for topic in chosen:
            _check_topic(cluster, check, topic, owned.get(topic.name, (app.name, [])), now_ms)
    return check


def _check_topic(
    cluster: Cluster, check: HistoryCheck, topic: Topic, owned: OwnedVersions, now_ms: int
) -> None:
    owner, all_versions = owned
    info = cluster.topic(topic.name)
    topic_id = "" if info is None else info.id
    versions = versions_of_id(all_versions, topic_id)
    if next_version(versions[-1:], topic, topic_id=topic_id) is None:
        return
    ends = {} if info is None else cluster.ends(topic.name)
    end_texts = {str(number): end for number, end in ends.items()}
    new = next_version(all_versions, topic, topic_id=topic_id, ends=end_texts, now_ms=now_ms)
    is_owner = owner == check.app.name
    if new is not None and is_owner:
        check.new_versions.append(new)
    starts = cluster.starts(topic.name) if ends else {}
    ranges = {number: (starts.get(number, 0), end) for number, end in ends.items()}
    records = sample(cluster, topic.name, ranges)
    used = used_versions(versions, end_texts)
    check.histories.append(judge(topic, used, records, is_owner=is_owner))


def _owner_mistakes(
    cluster: Cluster, topics: Sequence[Topic], app: str, recorded: Mapping[str, OwnedVersions]
) -> list[AppError]:
    """Check who owns the topics: the app, the app in ``of``, or no app that the log knows.

    The owner of a derived topic is the app whose flow derives it (``headrace.generations``). The owner of another topic
    is the app that first recorded its schema.
    """
    mistakes = []
    generations = all_generations(cluster)
    for topic in topics:
        derived = generations.get(topic.name)
        exists = cluster.topic(topic.name) is not None
        owner, flow = "", ""
        if derived is not None and exists:
            owner, flow = derived.app, derived.flow
        elif topic.name in recorded and exists:
            owner = recorded[topic.name][0]
        problem, hint = "", ""
        if topic.of and not exists:
            problem = f"does not exist on this log, so app {topic.of!r} has not created it yet"
            hint = f"start app {topic.of!r} first"
        elif topic.of and owner and owner != topic.of:
            problem = f"is declared as a topic of app {topic.of!r}, but app {owner!r} owns it"
            hint = "remove of" if owner == app else f'declare it with of="{owner}"'
        elif flow and owner not in (topic.of, app):
            problem = f"is derived by flow {flow!r} of app {owner!r}"
            hint = f'declare it with of="{owner}"'
        elif flow and owner == app:
            problem = f"was derived by flow {flow!r} of this app, which the app no longer declares"
            hint = "declare the flow again, or delete the topic"
        if problem:
            mistakes.append(
                AppError(
                    f"topic {topic.name!r} {problem}", location=topic.location, code="HR-APP-OF", hint=hint
                )
            )
    return mistakes
