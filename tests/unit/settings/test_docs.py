"""The page about settings has each of them, with the default that it has."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.settings.known import known
from headrace.settings.loading import load

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_file_that_the_page_shows_is_a_good_one(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "headrace.toml").write_text(shown, encoding="utf-8")
    settings = load(file=tmp_path / "headrace.toml", environment={}).settings
    assert (settings.spark.driver_memory, settings.data) == ("4g", Path("/var/lib/shop"))
    assert settings.log.properties == {"security.protocol": "ssl"}


def test_every_setting_is_on_its_page_with_its_default() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (\S+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    none = (None, "", {})
    expected = {key: "none" if one.default in none else f"`{one.default}`" for key, one in known().items()}
    # Those of the broker have a table of their own.
    assert {key: default for key, default in rows if not key.startswith("headrace.")} == expected
