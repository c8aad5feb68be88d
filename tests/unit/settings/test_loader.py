"""Settings: which source has precedence, the origin of each value, and errors for invalid values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.settings import Settings
from headrace.settings.definitions import definitions
from headrace.settings.loader import FileUnreadable, Flag, Loaded, SettingTypeError, SettingUnknown, load
from headrace.settings.secrets import MASK, masked


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(text: str = "", environment: Mapping[str, str] | None = None, *flags: Flag) -> Loaded:
    if text:
        Path("headrace.toml").write_text(text, encoding="utf-8")
    return load(flags, environment=environment or {})


def test_without_file_environment_and_flags_every_setting_has_its_default() -> None:
    loaded_settings = loaded()
    assert loaded_settings.settings == Settings()
    assert {setting.origin for setting in loaded_settings.shown()} == {"default"}
    assert loaded_settings.file is None


def test_precedence_is_flag_environment_file_default() -> None:
    text = '[spark]\nmaster = "local[1]"\ndriver_memory = "2g"\nstate = "rocksdb"\n'
    environment = {"HEADRACE_SPARK__MASTER": "local[2]", "HEADRACE_SPARK__DRIVER_MEMORY": "3g"}
    loaded_settings = loaded(text, environment, Flag("spark.master", "local[3]", "--master"))
    spark = loaded_settings.settings.spark
    assert (spark.master, spark.driver_memory, spark.state) == ("local[3]", "3g", "rocksdb")
    origins = {setting.key: setting.origin for setting in loaded_settings.shown()}
    assert origins["spark.master"] == "--master"
    assert origins["spark.driver_memory"] == "HEADRACE_SPARK__DRIVER_MEMORY"
    assert origins["spark.state"] == "headrace.toml"
    assert origins["spark.jars"] == "default"


def test_an_absent_flag_and_an_empty_variable_change_nothing() -> None:
    loaded_settings = loaded(
        "", {"HEADRACE_DATA": ""}, Flag("data", None, "--data"), Flag("log.properties", {}, "-X")
    )
    assert (loaded_settings.settings, loaded_settings.origins) == (Settings(), {})


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
def test_headrace_variables_for_the_brokers_override_the_kafka_variable(
    environment: dict[str, str], origin: str
) -> None:
    loaded_settings = loaded('log.bootstrap_servers = "file:1"', environment)
    assert loaded_settings.settings.log.bootstrap_servers == "a:1"
    assert loaded_settings.origins["log.bootstrap_servers"] == origin


def test_tables_are_merged_by_name_and_a_dotted_name_is_one_name() -> None:
    text = """
    [log.properties]
    security.protocol = "ssl"
    "socket.timeout.ms" = 500
    [spark.conf]
    spark.sql.adaptive.enabled = false
    """
    environment = {"HEADRACE_LOG__PROPERTIES": '{"socket.timeout.ms": 700, "client.rack": "a"}'}
    loaded_settings = loaded(text, environment, Flag("log.properties", {"client.rack": "b"}, "-X"))
    assert loaded_settings.settings.log.properties == {
        "security.protocol": "ssl",
        "socket.timeout.ms": "700",
        "client.rack": "b",
    }
    assert loaded_settings.settings.spark.conf == {"spark.sql.adaptive.enabled": "false"}
    origins = {
        setting.key: setting.origin
        for setting in loaded_settings.shown()
        if setting.key.startswith("log.properties")
    }
    assert origins == {
        "log.properties.client.rack": "-X",
        "log.properties.security.protocol": "headrace.toml",
        "log.properties.socket.timeout.ms": "HEADRACE_LOG__PROPERTIES",
    }


def test_a_relative_path_in_a_file_is_relative_to_the_file(directory: Path) -> None:
    (directory / "deploy").mkdir()
    file = directory / "deploy" / "production.toml"
    file.write_text('data = "data"\n[spark]\njars = "/opt/jars"\n')
    loaded_settings = load(file=file, environment={})
    assert loaded_settings.settings.data == directory / "deploy" / "data"
    assert loaded_settings.settings.spark.jars == Path("/opt/jars")
    assert load(
        (Flag("data", Path("elsewhere"), "--data"),), file=file, environment={}
    ).settings.data == Path("elsewhere")


@pytest.mark.parametrize(
    ("text", "environment", "message", "hint"),
    [
        ("flow.max_row = 1", {}, "headrace.toml: flow.max_row is not a setting", "flow.max_rows?"),
        ("[flows]\nmax_rows = 1", {}, "headrace.toml: flows is not a setting", "headrace config"),
        ("max_rows = 1", {}, "headrace.toml: max_rows is not a setting", "flow.max_rows?"),
        ("[log]\nmaster = 'local'", {}, "headrace.toml: log.master is not a setting", "spark.master?"),
        ("", {"HEADRACE_SPARK__MASTR": "x"}, "HEADRACE_SPARK__MASTR", "HEADRACE_SPARK__MASTER?"),
        ("", {"HEADRACE_NOTHING__LIKE_IT": "x"}, "HEADRACE_NOTHING__LIKE_IT", "headrace config"),
    ],
)
def test_an_unknown_name_is_rejected_with_its_origin_and_a_similar_name(
    text: str, environment: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(SettingUnknown) as caught:
        loaded(text, environment)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        (
            "flow.max_rows = 'many'",
            {},
            "headrace.toml: flow.max_rows is 'many', but must be a whole number, at least 1",
        ),
        ("flow.max_rows = true", {}, "is True, but must be a whole number"),
        ("flow.max_rows = 0", {}, "at least 1"),
        ("flow.max_rows = 1.5", {}, "is 1.5, but must be a whole number"),
        ("spark.master = ''", {}, "must be a string that is not empty"),
        ("spark.state = 'disk'", {}, "is 'disk', but must be memory or rocksdb"),
        ("data = 3", {}, "must be a path"),
        ("flow = 3", {}, "flow is not a setting"),
        ("log.properties = 'a=b'", {}, "must be a table of names and strings"),
        ("[spark.conf]\na = [1]", {}, "spark.conf.a must be a string"),
        ("", {"HEADRACE_FLOW__MAX_ROWS": "few"}, "flow.max_rows, from HEADRACE_FLOW__MAX_ROWS, is 'few'"),
        ("", {"HEADRACE_SPARK__CONF": "a=b"}, "must be a JSON object"),
    ],
)
def test_an_invalid_value_is_rejected_with_its_origin_and_the_expected_type(
    text: str, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(text, environment)
    assert message in caught.value.message


def test_the_error_for_an_invalid_table_does_not_contain_a_password() -> None:
    with pytest.raises(SettingTypeError) as caught:
        loaded("", {"HEADRACE_LOG__PROPERTIES": '{"sasl.password": "hush"'})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("content", [b"flow.max_rows =", b"\xff\xfe", b"[spark]\n[spark]\n"])
def test_a_file_that_is_not_toml_is_refused(content: bytes) -> None:
    Path("headrace.toml").write_bytes(content)
    with pytest.raises(FileUnreadable, match=r"headrace\.toml is not TOML"):
        load(environment={})


def test_a_named_settings_file_must_exist(directory: Path) -> None:
    with pytest.raises(FileUnreadable, match=r"cannot read .*other\.toml: No such file"):
        load(file=directory / "other.toml", environment={})


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
    **dict.fromkeys([key for key in definitions() if key.startswith("flow.")], st.integers(1, 2**31)),
    "flow.realtime_ms": st.integers(5_000, 2**31),
    "spark.master": st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1),
}


@given(st.sampled_from(sorted(VALUES)).flatmap(lambda key: st.tuples(st.just(key), VALUES[key])))
def test_a_file_and_a_variable_set_the_same_value(chosen: tuple[str, object]) -> None:
    key, value = chosen
    Path("headrace.toml").write_text(f"{key} = {msgspec.json.encode(value).decode()}", encoding="utf-8")
    from_file = load(environment={}).settings
    Path("headrace.toml").unlink()
    assert load(environment={definitions()[key].variable: str(value)}).settings == from_file
