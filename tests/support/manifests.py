"""The parts of Kubernetes' and Compose's schemas that our files use. An unknown or misspelled field is an error.

Names, types and required fields are those of Kubernetes 1.32 and of the Compose specification.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

__all__ = ["Compose", "Deployment", "Object", "PodSpec", "StatefulSet", "load_all", "objects"]

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
PortName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,15}$")]
Quantity = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(m|Ki|Mi|Gi|Ti)?$")]
Count = Annotated[int, msgspec.Meta(ge=1)]
Path_ = Annotated[str, msgspec.Meta(pattern=r"^/")]


class Strict(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    pass


class Metadata(Strict):
    name: Name
    labels: dict[str, str] = {}


class TemplateMetadata(Strict):
    labels: dict[str, str]


class Selector(Strict):
    match_labels: dict[str, str]


class SeccompProfile(Strict):
    type: Literal["RuntimeDefault"]


class PodSecurity(Strict):
    run_as_non_root: bool
    run_as_user: Annotated[int, msgspec.Meta(gt=0)]
    run_as_group: Annotated[int, msgspec.Meta(gt=0)]
    seccomp_profile: SeccompProfile
    fs_group: int | None = None


class Capabilities(Strict):
    drop: list[str]


class ContainerSecurity(Strict):
    allow_privilege_escalation: bool
    read_only_root_filesystem: bool
    capabilities: Capabilities


class HttpHeader(Strict):
    name: str
    value: str


class HttpGet(Strict):
    path: Path_
    port: PortName | Port
    http_headers: list[HttpHeader] = []


class Probe(Strict):
    http_get: HttpGet
    period_seconds: Count = 10
    timeout_seconds: Count = 1
    failure_threshold: Count = 3


class ContainerPort(Strict):
    name: PortName
    container_port: Port


class KeyOfSecret(Strict):
    name: Name
    key: str


class ValueFrom(Strict):
    secret_key_ref: KeyOfSecret


class Variable(Strict):
    name: str
    value: str | None = None
    value_from: ValueFrom | None = None


class Amounts(Strict):
    memory: Quantity
    cpu: Quantity | None = None


class Resources(Strict):
    requests: Amounts
    limits: Amounts


class VolumeMount(Strict):
    name: Name
    mount_path: Path_
    sub_path: str | None = None
    read_only: bool = False


class Container(Strict):
    name: Name
    image: str
    args: list[str]
    security_context: ContainerSecurity
    resources: Resources
    volume_mounts: list[VolumeMount]
    ports: list[ContainerPort] = []
    env: list[Variable] = []
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None


class NamedSource(Strict):
    name: Name


class SecretSource(Strict):
    secret_name: Name
    default_mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)] = 0o644


class ClaimSource(Strict):
    claim_name: Name


class Volume(Strict):
    name: Name
    config_map: NamedSource | None = None
    secret: SecretSource | None = None
    empty_dir: dict[str, Any] | None = None
    persistent_volume_claim: ClaimSource | None = None


class PodSpec(Strict):
    security_context: PodSecurity
    containers: list[Container]
    volumes: list[Volume]
    automount_service_account_token: bool
    termination_grace_period_seconds: Count = 30


class PodTemplate(Strict):
    metadata: TemplateMetadata
    spec: PodSpec


class StorageRequest(Strict):
    storage: Quantity


class Storage(Strict):
    requests: StorageRequest


class ClaimSpec(Strict):
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"]]
    resources: Storage


class ClaimTemplate(Strict):
    metadata: Metadata
    spec: ClaimSpec


class Strategy(Strict):
    type: Literal["Recreate", "RollingUpdate"]


class DeploymentSpec(Strict):
    replicas: int
    selector: Selector
    template: PodTemplate
    strategy: Strategy = Strategy("RollingUpdate")


class StatefulSetSpec(Strict):
    replicas: int
    service_name: Name
    selector: Selector
    template: PodTemplate
    volume_claim_templates: list[ClaimTemplate] = []


class ServicePort(Strict):
    name: PortName
    port: Port
    target_port: PortName | Port


class ServiceSpec(Strict):
    selector: dict[str, str]
    ports: list[ServicePort]


class ConfigMap(Strict, tag_field="kind", tag="ConfigMap"):
    api_version: Literal["v1"]
    metadata: Metadata
    data: dict[str, str]


class Service(Strict, tag_field="kind", tag="Service"):
    api_version: Literal["v1"]
    metadata: Metadata
    spec: ServiceSpec


class PersistentVolumeClaim(Strict, tag_field="kind", tag="PersistentVolumeClaim"):
    api_version: Literal["v1"]
    metadata: Metadata
    spec: ClaimSpec


class Deployment(Strict, tag_field="kind", tag="Deployment"):
    api_version: Literal["apps/v1"]
    metadata: Metadata
    spec: DeploymentSpec


class StatefulSet(Strict, tag_field="kind", tag="StatefulSet"):
    api_version: Literal["apps/v1"]
    metadata: Metadata
    spec: StatefulSetSpec


Object = ConfigMap | Service | PersistentVolumeClaim | Deployment | StatefulSet


class Dependency(msgspec.Struct, forbid_unknown_fields=True):
    condition: Literal["service_started", "service_healthy"]


class HealthCheck(msgspec.Struct, forbid_unknown_fields=True):
    test: list[str]
    interval: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+s$")]
    timeout: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+s$")]
    retries: Count


class ComposeService(msgspec.Struct, forbid_unknown_fields=True):
    image: str
    restart: Literal["on-failure"]
    volumes: list[str] = []
    environment: dict[str, str] = {}
    healthcheck: HealthCheck | None = None
    read_only: bool = False
    init: bool = False
    user: str = ""
    cap_drop: list[str] = []
    security_opt: list[str] = []
    tmpfs: list[str] = []
    entrypoint: list[str] = []
    command: list[str] = []
    hostname: str = ""
    ports: list[str] = []
    secrets: list[str] = []
    depends_on: dict[str, Dependency] = {}


class ComposeSecret(msgspec.Struct, forbid_unknown_fields=True):
    file: str


class Compose(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    services: dict[Name, ComposeService]
    secrets: dict[str, ComposeSecret]
    volumes: dict[Name, None]
    x_headrace: Any = msgspec.field(name="x-headrace", default=None)


class _Loader(yaml.SafeLoader):
    """Refuses a key that occurs twice in a mapping. YAML would use the last value."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    names = [key.value for key, _ in node.value]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{node.start_mark}: {', '.join(sorted(duplicates))} occurs twice")
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_all(path: Path) -> list[Any]:
    """Return the documents of a YAML file."""
    return list(yaml.load_all(path.read_text(encoding="utf-8"), _Loader))


def objects(path: Path) -> list[Object]:
    return [msgspec.convert(document, Object) for document in load_all(path)]
