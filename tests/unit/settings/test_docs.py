"""The documentation of settings lists every setting with its default."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.settings.definitions import definitions
from headrace.settings.loader import load

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_settings_file_on_the_page_is_valid(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "headrace.toml").write_text(shown, encoding="utf-8")
    settings = load(file=tmp_path / "headrace.toml", environment={}).settings
    assert (settings.spark.driver_memory, settings.data) == ("4g", Path("/var/lib/shop"))
    assert settings.log.properties == {"security.protocol": "ssl"}


def test_every_setting_is_on_its_page_with_its_default() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (\S+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    none = (None, "", {})
    expected = {
        key: "none" if definition.default in none else f"`{definition.default}`"
        for key, definition in definitions().items()
    }
    # The settings of the broker are in another table.
    assert {key: default for key, default in rows if not key.startswith("headrace.")} == expected
