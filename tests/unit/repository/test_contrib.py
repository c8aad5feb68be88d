"""The files in contrib/: systemd accepts the units, the YAML has no unknown field, and every command line is valid."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.cli.broker_args import parse_broker_args
from headrace.flow.spark.java import JAVA_PACKAGES
from headrace.settings.loader import load
from tests.cli.runner import Headrace
from tests.support.containerfile import Build, Instruction, instructions
from tests.support.manifests import Compose, Deployment, PodSpec, StatefulSet, load_all, objects
from tools import debian

from .tracked import ROOT, short, tracked_files

CONTRIB = ROOT / "contrib"
UNITS = sorted((CONTRIB / "systemd").glob("*.service"))
MANIFESTS = sorted((CONTRIB / "kubernetes").glob("*.yaml"))
COMPOSE = CONTRIB / "compose" / "compose.yaml"
CONTAINERFILES = sorted((CONTRIB / "container").glob("*Containerfile"))
COMMAND = "/opt/headrace/bin/headrace"
EXPOSURE_MAX = 2.0
"""The highest exposure level that ``systemd-analyze security`` may compute, from 0 (best) to 10."""


def expect_valid(words: list[str]) -> None:
    """``words`` follow ``headrace``. ``--help`` makes the command parse its options without running."""
    if words[0] == "broker":
        assert parse_broker_args(words[1:]) is not None, words
    else:
        done = Headrace("").run(*words, "--help")
        assert done.code == 0, (words, done.err)


@pytest.mark.parametrize(
    "words", [["serve", "app:app", "--port", "1"], ["view", "fellow"], ["broker", "--datum"]]
)
def test_an_invalid_command_line_is_detected(words: list[str]) -> None:
    with pytest.raises(AssertionError):
        expect_valid(words)


# systemd


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_unit_and_finds_it_hardened(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    assert text.count(COMMAND) == 1
    copy = tmp_path / unit.name
    copy.write_text(text.replace(COMMAND, sys.executable), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    # Units of this machine that the unit depends on may have remarks of their own.
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", copy],
        capture_output=True,
        text=True,
        check=True,
    )
    level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert level is not None
    assert float(level[1]) <= EXPOSURE_MAX, done.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_waits_for_readiness_and_runs_a_valid_command(unit: Path) -> None:
    lines = [line.partition("=") for line in unit.read_text(encoding="utf-8").splitlines() if "=" in line]
    settings = {name: value for name, _, value in lines if not name.startswith("#")}
    assert (settings["Type"], settings["NotifyAccess"]) == ("notify", "main")
    assert "WatchdogSec" in settings
    words = shlex.split(settings["ExecStart"])
    assert words[0] == COMMAND
    expect_valid(words[1:])


# YAML


@pytest.mark.parametrize("path", sorted(CONTRIB.rglob("*.yaml")), ids=short)
def test_a_yaml_file_has_no_tab_no_trailing_blank_and_no_ambiguous_boolean(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        assert "\t" not in line, number
        assert line == line.rstrip(), number
        assert len(line) <= 120, number
        assert not re.search(r": (?i:yes|no|on|off)$", line), number


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_kubernetes_manifest_has_no_unknown_field_and_no_missing_name(path: Path) -> None:
    found = objects(path)
    names = {(type(thing).__name__, thing.metadata.name) for thing in found}
    assert len(names) == len(found)
    for workload in found:
        if not isinstance(workload, (Deployment, StatefulSet)):
            continue
        spec, template = workload.spec, workload.spec.template
        assert spec.selector.match_labels == template.metadata.labels
        claims = spec.volume_claim_templates if isinstance(workload, StatefulSet) else []
        if isinstance(workload, StatefulSet):
            assert ("Service", workload.spec.service_name) in names
        for volume in template.spec.volumes:
            if volume.config_map is not None:
                assert ("ConfigMap", volume.config_map.name) in names
            if volume.persistent_volume_claim is not None:
                assert ("PersistentVolumeClaim", volume.persistent_volume_claim.claim_name) in names
        expect_hardened(template.spec, {claim.metadata.name for claim in claims})


def expect_hardened(pod: PodSpec, claims: set[str]) -> None:
    assert pod.security_context.run_as_non_root
    volumes = {volume.name for volume in pod.volumes} | claims
    for container in pod.containers:
        security = container.security_context
        assert security.read_only_root_filesystem
        assert not security.allow_privilege_escalation
        assert security.capabilities.drop == ["ALL"]
        assert {mount.name for mount in container.volume_mounts} == volumes
        assert {"/data", "/tmp", "/app/headrace.toml"} <= {
            mount.mount_path for mount in container.volume_mounts
        }
        ports = {port.name for port in container.ports}
        for probe in (container.startup_probe, container.liveness_probe, container.readiness_probe):
            if probe is not None:
                assert probe.http_get.port in ports
                # Another name in the Host header would be refused (docs/serve.md).
                assert [header.value for header in probe.http_get.http_headers] == ["localhost"]
        expect_valid(container.args)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_the_settings_of_a_manifest_are_valid(path: Path, tmp_path: Path) -> None:
    (config,) = [thing for thing in load_all(path) if thing["kind"] == "ConfigMap"]
    file = tmp_path / "headrace.toml"
    file.write_text(config["data"]["headrace.toml"], encoding="utf-8")
    assert load(file=file, environment={}).settings.data == Path("/data")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("a: 1\nb: 2\na: 3", "a occurs twice"),
        (
            "kind: Service\napiVersion: v1\nmetadata: {name: x}\nspec: {ports: [], selectors: {}}",
            "unknown field",
        ),
        (
            "kind: Service\napiVersion: v1\nmetadata: {name: X}\nspec: {ports: [], selector: {}}",
            "matching regex",
        ),
    ],
)
def test_a_wrong_manifest_is_detected(document: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(document, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        objects(file)


def test_the_compose_file_is_hardened_and_its_references_exist() -> None:
    (document,) = load_all(COMPOSE)
    compose = msgspec.convert(document, Compose)
    for name, service in compose.services.items():
        assert set(service.depends_on) <= set(compose.services)
        for other, dependency in service.depends_on.items():
            if dependency.condition == "service_healthy":
                assert compose.services[other].healthcheck is not None
        assert set(service.secrets) <= set(compose.secrets)
        sources = {mount.partition(":")[0] for mount in service.volumes}
        assert {source for source in sources if not source.startswith(".")} <= set(compose.volumes)
        assert all((COMPOSE.parent / source).is_file() for source in sources if source.startswith("."))
        if service.image != "localhost/shop":
            assert re.search(r":\d+\.\d+\.\d+$", service.image), "pin the version of another image"
            continue
        assert service.read_only, name
        assert (service.user, service.cap_drop) == ("10001:10001", ["ALL"])
        if not service.entrypoint:
            expect_valid(service.command)
    published = [port for service in compose.services.values() for port in service.ports]
    assert all(port.startswith("127.0.0.1:") for port in published), "only this machine may connect"


def test_the_settings_of_the_compose_file_are_valid_and_name_its_services() -> None:
    (document,) = load_all(COMPOSE)
    settings = load(file=COMPOSE.parent / "headrace.toml", environment={}).settings
    hosts = {
        str(settings.log.bootstrap_servers).partition(":")[0],
        settings.spark.master.removeprefix("spark://").partition(":")[0],
        settings.spark.conf["spark.driver.host"],
    }
    assert hosts == {"kafka", "spark-master", "flows"} <= set(document["services"])
    assert settings.spark.secret_file == Path("/run/secrets/spark_secret")


# Container images


def instructions_of(path: Path) -> list[Instruction]:
    return list(instructions(path.read_text(encoding="utf-8")))


def test_the_image_runs_as_an_ordinary_user_on_debian_with_locked_packages() -> None:
    parsed = instructions_of(CONTRIB / "container" / "Containerfile")
    users = [instruction.text for instruction in parsed if instruction.name == "USER"]
    assert users == ["10001:10001"]
    assert [instruction.text for instruction in parsed if instruction.name == "ARG"] == [
        "BASE=debian:bookworm-slim"
    ]
    assert not any(instruction.name == "ADD" for instruction in parsed)
    tracked = {short(path) for path in tracked_files()}
    for words in (instruction.words for instruction in parsed if instruction.name == "COPY"):
        if not words[0].startswith("--from="):
            missing = [name for name in words[:-1] if not any(path.startswith(name) for path in tracked)]
            assert missing == []
    for packages, text in apt_installs(parsed):
        assert "--no-install-recommends" in text
        assert text.endswith("rm -rf /var/lib/apt/lists/*")
        assert packages <= {"gcc", "libc6-dev", "python3-dev", "python3-venv", "python3", *JAVA_PACKAGES}
    pips = [command for command in run_commands(parsed) if "pip install" in command]
    locked = [re.search(r"--require-hashes -r (\S+)$", command) for command in pips[:-1]]
    assert all(match and match[1] in tracked for match in locked)
    assert pips[-1].endswith("--no-deps --no-build-isolation .")
    headrace = [command for command in run_commands(parsed) if command.startswith("headrace ")]
    for command in headrace:
        expect_valid(shlex.split(command)[1:])
    assert headrace


def run_commands(parsed: list[Instruction]) -> list[str]:
    return [
        command.strip()
        for instruction in parsed
        if instruction.name == "RUN"
        for command in instruction.text.split("&&")
    ]


def apt_installs(parsed: list[Instruction]) -> Iterator[tuple[set[str], str]]:
    for instruction in parsed:
        if "apt-get install" in instruction.text:
            words = instruction.text.split("apt-get install")[1].split("&&")[0].split()
            yield {word for word in words if not word.startswith("-")}, instruction.text


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_the_command_of_an_image_is_valid(path: Path) -> None:
    commands = [instruction.words for instruction in instructions_of(path) if instruction.name == "CMD"]
    assert len(commands) == 1
    expect_valid([word for word in commands[0] if word != "--help"] or ["doctor"])


@pytest.mark.soak
def test_the_image_can_be_built_and_runs_with_a_read_only_root(tmp_path: Path) -> None:
    debootstrap = debian.Package("debootstrap", "debootstrap", "it creates the root file system of the image")
    debian.provide([debootstrap], may_install=debian.can_install())
    build = Build(ROOT, tmp_path)
    build.run_file((CONTRIB / "container" / "Containerfile").read_text(encoding="utf-8"))
    assert build.stage.entrypoint == ["headrace"]
    assert build.run(["headrace", "--version"], read_only=True).stdout.startswith("headrace ")
    doctor = build.run(["headrace", "doctor", "--json"], read_only=True).stdout
    states = {finding["check"]: finding["state"] for finding in map(msgspec.json.decode, doctor.splitlines())}
    assert {states[name] for name in ("java", "jars", "pyspark", "class-archive", "c-part", "data")} == {"ok"}
    script = "headrace init /tmp/app && cd /tmp/app && headrace run app:app --data /data --for 1 --verify"
    build.run(["/bin/sh", "-ec", script], read_only=True)


# CI


def test_the_workflow_installs_what_an_app_needs_and_runs_its_tests() -> None:
    (workflow,) = load_all(CONTRIB / "ci" / "github-actions.yaml")
    steps = workflow["jobs"]["test"]["steps"]
    assert all(re.search(r"@v\d+$", step["uses"]) for step in steps if "uses" in step), "pin the version"
    commands = [shlex.split(step["run"]) for step in steps if "run" in step]
    assert [command[0] for command in commands] == ["pip", "headrace", "python"]
    expect_valid(commands[1][1:])
