"""The settings that a command works with."""

from __future__ import annotations

import dataclasses

from headrace.cli.session import Session
from headrace.settings import Settings

__all__ = ["settings_for"]


def settings_for(session: Session) -> Settings:
    settings = Settings()
    log = dataclasses.replace(
        settings.log, bootstrap_servers=session.named_bootstrap, properties=session.properties
    )
    return dataclasses.replace(settings, log=log)
