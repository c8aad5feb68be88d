"""What the forked commands find already imported; none of it opens a connection or starts a thread."""

from __future__ import annotations

import confluent_kafka.admin
import msgspec
import typer

import headrace.cli.app
import headrace.cli.consume
import headrace.cli.group
import headrace.cli.lag
import headrace.cli.produce
import headrace.cli.topic

__all__ = ["confluent_kafka", "headrace", "msgspec", "typer"]
