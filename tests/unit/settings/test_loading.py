"""Settings: which source counts, what each value's origin is, and that nothing wrong is passed over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.settings import Settings
from headrace.settings.errors import FileUnreadable, SettingMisfit, SettingUnknown
from headrace.settings.known import known
from headrace.settings.loading import Flag, Loaded, load
from headrace.settings.secrets import MASK, masked


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(text: str = "", environment: Mapping[str, str] | None = None, *flags: Flag) -> Loaded:
    if text:
        Path("headrace.toml").write_text(text, encoding="utf-8")
    return load(flags, environment=environment or {})


def test_without_anything_every_setting_is_its_default() -> None:
    found = loaded()
    assert found.settings == Settings()
    assert {one.origin for one in found.shown()} == {"default"}
    assert found.file is None


def test_a_flag_counts_before_the_environment_before_the_file_before_the_default() -> None:
    text = '[spark]\nmaster = "local[1]"\ndriver_memory = "2g"\nstate = "rocksdb"\n'
    environment = {"HEADRACE_SPARK__MASTER": "local[2]", "HEADRACE_SPARK__DRIVER_MEMORY": "3g"}
    found = loaded(text, environment, Flag("spark.master", "local[3]", "--master"))
    spark = found.settings.spark
    assert (spark.master, spark.driver_memory, spark.state) == ("local[3]", "3g", "rocksdb")
    origins = {one.key: one.origin for one in found.shown()}
    assert origins["spark.master"] == "--master"
    assert origins["spark.driver_memory"] == "HEADRACE_SPARK__DRIVER_MEMORY"
    assert origins["spark.state"] == "headrace.toml"
    assert origins["spark.jars"] == "default"


def test_a_flag_that_was_not_given_and_a_variable_that_is_empty_change_nothing() -> None:
    found = loaded("", {"HEADRACE_DATA": ""}, Flag("data", None, "--data"), Flag("log.properties", {}, "-X"))
    assert (found.settings, found.origins) == (Settings(), {})


@pytest.mark.parametrize(
    ("environment", "origin"),
    [
        ({"KAFKA_BOOTSTRAP_SERVERS": "a:1"}, "KAFKA_BOOTSTRAP_SERVERS"),
        (
            {"KAFKA_BOOTSTRAP_SERVERS": "b:1", "HEADRACE_BOOTSTRAP_SERVERS": "a:1"},
            "HEADRACE_BOOTSTRAP_SERVERS",
        ),
        (
            {"HEADRACE_LOG__BOOTSTRAP_SERVERS": "a:1", "HEADRACE_BOOTSTRAP_SERVERS": "b:1"},
            "HEADRACE_LOG__BOOTSTRAP_SERVERS",
        ),
        ({"KAFKA_BOOTSTRAP_SERVERS": "a:1", "HEADRACE_BOOTSTRAP_SERVERS": ""}, "KAFKA_BOOTSTRAP_SERVERS"),
    ],
)
def test_the_brokers_have_three_variables_of_which_ours_count_first(
    environment: dict[str, str], origin: str
) -> None:
    found = loaded('log.bootstrap_servers = "file:1"', environment)
    assert found.settings.log.bootstrap_servers == "a:1"
    assert found.origins["log.bootstrap_servers"] == origin


def test_tables_are_merged_name_by_name_and_dotted_names_are_one_name() -> None:
    text = """
    [log.properties]
    security.protocol = "ssl"
    "socket.timeout.ms" = 500
    [spark.conf]
    spark.sql.adaptive.enabled = false
    """
    environment = {"HEADRACE_LOG__PROPERTIES": '{"socket.timeout.ms": 700, "client.rack": "a"}'}
    found = loaded(text, environment, Flag("log.properties", {"client.rack": "b"}, "-X"))
    assert found.settings.log.properties == {
        "security.protocol": "ssl",
        "socket.timeout.ms": "700",
        "client.rack": "b",
    }
    assert found.settings.spark.conf == {"spark.sql.adaptive.enabled": "false"}
    origins = {one.key: one.origin for one in found.shown() if one.key.startswith("log.properties")}
    assert origins == {
        "log.properties.client.rack": "-X",
        "log.properties.security.protocol": "headrace.toml",
        "log.properties.socket.timeout.ms": "HEADRACE_LOG__PROPERTIES",
    }


def test_a_relative_path_in_a_file_is_relative_to_the_file(here: Path) -> None:
    (here / "deploy").mkdir()
    file = here / "deploy" / "production.toml"
    file.write_text('data = "data"\n[spark]\njars = "/opt/jars"\n')
    found = load(file=file, environment={})
    assert found.settings.data == here / "deploy" / "data"
    assert found.settings.spark.jars == Path("/opt/jars")
    assert load(
        (Flag("data", Path("elsewhere"), "--data"),), file=file, environment={}
    ).settings.data == Path("elsewhere")


@pytest.mark.parametrize(
    ("text", "environment", "says", "hint"),
    [
        ("flow.max_row = 1", {}, "headrace.toml: flow.max_row is not a setting", "flow.max_rows?"),
        ("[flows]\nmax_rows = 1", {}, "headrace.toml: flows is not a setting", "headrace config"),
        ("max_rows = 1", {}, "headrace.toml: max_rows is not a setting", "flow.max_rows?"),
        ("[log]\nmaster = 'local'", {}, "headrace.toml: log.master is not a setting", "spark.master?"),
        ("", {"HEADRACE_SPARK__MASTR": "x"}, "HEADRACE_SPARK__MASTR", "HEADRACE_SPARK__MASTER?"),
        ("", {"HEADRACE_NOTHING__LIKE_IT": "x"}, "HEADRACE_NOTHING__LIKE_IT", "headrace config"),
    ],
)
def test_an_unknown_name_is_refused_with_its_place_and_the_nearest_known_one(
    text: str, environment: dict[str, str], says: str, hint: str
) -> None:
    with pytest.raises(SettingUnknown) as caught:
        loaded(text, environment)
    assert says in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "environment", "says"),
    [
        (
            "flow.max_rows = 'many'",
            {},
            "headrace.toml: flow.max_rows is 'many', and must be a whole number, at least 1",
        ),
        ("flow.max_rows = true", {}, "is True, and must be a whole number"),
        ("flow.max_rows = 0", {}, "at least 1"),
        ("flow.max_rows = 1.5", {}, "is 1.5, and must be a whole number"),
        ("spark.master = ''", {}, "must be a text that is not empty"),
        ("spark.state = 'disk'", {}, "is 'disk', and must be memory or rocksdb"),
        ("data = 3", {}, "must be a path"),
        ("flow = 3", {}, "flow is not a setting"),
        ("log.properties = 'a=b'", {}, "must be a table of names and texts"),
        ("[spark.conf]\na = [1]", {}, "spark.conf.a must be a text"),
        ("", {"HEADRACE_FLOW__MAX_ROWS": "few"}, "flow.max_rows, from HEADRACE_FLOW__MAX_ROWS, is 'few'"),
        ("", {"HEADRACE_SPARK__CONF": "a=b"}, "must be a JSON object"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place_and_what_fits(
    text: str, environment: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(text, environment)
    assert says in caught.value.message


def test_a_password_is_not_quoted_when_its_table_is_refused() -> None:
    with pytest.raises(SettingMisfit) as caught:
        loaded("", {"HEADRACE_LOG__PROPERTIES": '{"sasl.password": "hush"'})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("content", [b"flow.max_rows =", b"\xff\xfe", b"[spark]\n[spark]\n"])
def test_a_file_that_is_not_toml_is_refused(content: bytes) -> None:
    Path("headrace.toml").write_bytes(content)
    with pytest.raises(FileUnreadable, match=r"headrace\.toml is not TOML"):
        load(environment={})


def test_a_file_that_was_named_must_be_there(here: Path) -> None:
    with pytest.raises(FileUnreadable, match=r"other\.toml cannot be read: No such file"):
        load(file=here / "other.toml", environment={})


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("log.properties.sasl.password", "hush", MASK),
        ("log.properties.ssl.key.pem", "-----BEGIN", MASK),
        ("log.properties.sasl.jaas.config", "… password=hush", MASK),
        ("spark.conf.spark.hadoop.fs.s3a.secret.key", "hush", MASK),
        ("log.properties.sasl.username", "ann", "ann"),
        ("log.bootstrap_servers", "SSL://ann:hush@kafka:9092", f"SSL://{MASK}@kafka:9092"),
        ("log.properties.sasl.password", "", ""),
        ("flow.max_rows", 3, 3),
    ],
)
def test_secrets_are_masked(key: str, value: object, shown: object) -> None:
    assert masked(key, value) == shown


VALUES = {
    **dict.fromkeys([one for one in known() if one.startswith("flow.")], st.integers(1, 2**31)),
    "flow.realtime_ms": st.integers(5_000, 2**31),
    "spark.master": st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1),
}


@given(st.sampled_from(sorted(VALUES)).flatmap(lambda key: st.tuples(st.just(key), VALUES[key])))
def test_what_a_file_sets_is_what_the_same_variable_sets(chosen: tuple[str, object]) -> None:
    key, value = chosen
    Path("headrace.toml").write_text(f"{key} = {msgspec.json.encode(value).decode()}", encoding="utf-8")
    from_file = load(environment={}).settings
    Path("headrace.toml").unlink()
    assert load(environment={known()[key].variable: str(value)}).settings == from_file
