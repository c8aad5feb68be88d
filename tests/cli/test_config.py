"""``headrace config``, and that other commands use the brokers that it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.session import connect_address
from tests.cli.runner import Headrace, Result

BARE = {"HEADRACE_BOOTSTRAP_SERVERS": ""}


@pytest.fixture
def without_broker() -> Headrace:
    return Headrace("127.0.0.1:1")


def config(
    headrace: Headrace, file: Path, *words: str, env: dict[str, str] | None = None
) -> dict[str, tuple[object, str]]:
    shown = headrace.ok("config", "--settings", str(file), "--json", *words, env={**BARE, **(env or {})})
    return {row["setting"]: (row["value"], row["origin"]) for row in shown.json}


def test_every_value_is_shown_with_its_origin_and_secrets_masked(
    without_broker: Headrace, tmp_path: Path
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text('[log]\nbootstrap_servers = "kafka:9092"\nproperties.sasl.password = "hush"\n')
    rows = config(without_broker, file, "-X", "sasl.username=ann", env={"HEADRACE_FLOW__TRIGGER_MS": "250"})
    assert rows["log.bootstrap_servers"] == ("kafka:9092", str(file))
    assert rows["log.properties.sasl.password"] == ("****", str(file))
    assert rows["log.properties.sasl.username"] == ("ann", "-X")
    assert rows["flow.trigger_ms"] == (250, "HEADRACE_FLOW__TRIGGER_MS")
    assert rows["flow.max_rows"] == (100_000, "default")
    table = without_broker.ok("config", "--settings", str(file), env=BARE)
    assert table.lines[0].split() == ["SETTING", "VALUE", "ORIGIN"]
    assert "hush" not in table.out


def test_commands_read_brokers_from_flag_environment_and_file(headrace: Headrace, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(f'log.bootstrap_servers = "{headrace.bootstrap}"\n')
    listing = ("topic", "list", "--settings", str(file))
    assert headrace.run(*listing, env=BARE).code == 0
    assert headrace.run("--settings", str(file), "topic", "list", env=BARE).code == 0
    assert headrace.run(*listing, env={"HEADRACE_BOOTSTRAP_SERVERS": "127.0.0.1:1"}).code == 3
    assert headrace.run(*listing, "-b", "127.0.0.1:1", env=BARE).code == 3


def test_commands_without_brokers_connect_to_the_address_of_the_embedded_broker(
    headrace: Headrace, tmp_path: Path
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(f'log.listen = "{headrace.bootstrap}"\n')
    assert headrace.run("topic", "list", "--settings", str(file), env=BARE).code == 0
    listen = {**BARE, "HEADRACE_LOG__LISTEN": "0.0.0.0:1"}
    assert "no broker responds at 127.0.0.1:1" in headrace.run("topic", "list", env=listen).err


def test_the_address_to_connect_to_is_never_a_wildcard() -> None:
    listens = ("127.0.0.1:9093", "0.0.0.0:9093", "[::]:1", "log.example:9092", ":9092")
    assert [connect_address(listen) for listen in listens] == [
        *("127.0.0.1:9093", "127.0.0.1:9093", "[::1]:1", "log.example:9092", "127.0.0.1:9092")
    ]


def test_client_properties_of_the_file_reach_the_client(headrace: Headrace, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text('log.properties."no.such.property" = "1"\n')
    failed = headrace.run("topic", "list", "--settings", str(file))
    assert failed.code == 2
    assert "no.such.property" in failed.err


def test_headrace_toml_of_the_current_folder_is_read(
    without_broker: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "headrace.toml").write_text("flow.max_row = 1\n")
    monkeypatch.chdir(tmp_path)
    failed: Result = without_broker.call("topic", "list")
    assert (failed.code, failed.out) == (2, "")
    assert "headrace.toml: flow.max_row is not a setting" in failed.err
    assert "did you mean flow.max_rows?" in failed.err
