"""Where the archive is, as the operator says it: a folder, or a bucket of an object store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.log.archive_folder import FolderStore
from headrace.log.archive_store import ArchiveStore
from headrace.log.bucket_address import BucketAddress, parse_bucket
from headrace.model.extras import needing

if TYPE_CHECKING:
    from headrace.broker.settings import BrokerSettings
    from headrace.files import Files
    from headrace.log.archive_bucket import BucketStore

__all__ = ["open_archive", "parse_archive"]

_ADDRESS = "headrace.archive.dir"
_ENDPOINT = "headrace.archive.s3.endpoint"
_REGION = "headrace.archive.s3.region"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def parse_archive(configs: dict[str, str]) -> Path | BucketAddress | None:
    """Take the archive's settings out of those that are also defaults of topics."""
    address, endpoint, region = (configs.pop(name, "") for name in (_ADDRESS, _ENDPOINT, _REGION))
    scheme = _SCHEME.match(address)
    if scheme is not None and scheme[1] == "s3":
        bucket = parse_bucket(address, endpoint, region)
        _bucket_store()
        return bucket
    if scheme is not None:
        raise ConfigError(
            f"{_ADDRESS} is an address of {scheme[1]}, and archives are in folders and in buckets of S3",
            hint=f"--set {_ADDRESS}=FOLDER, or --set {_ADDRESS}=s3://BUCKET/PREFIX",
        )
    for name, value in ((_ENDPOINT, endpoint), (_REGION, region)):
        if value:
            raise ConfigError(
                f"{name} is set, and the archive is not in a bucket",
                hint=f"--set {_ADDRESS}=s3://BUCKET/PREFIX, or leave {name} out",
            )
    return Path(address) if address else None


def _bucket_store() -> type[BucketStore]:
    with needing("s3", "pyarrow"):
        from headrace.log.archive_bucket import BucketStore
    return BucketStore


def open_archive(settings: BrokerSettings, cluster_id: str, files: Files) -> ArchiveStore | None:
    """What is wrong with the address is raised here. Whether the archive answers is not asked: a broker starts, and
    serves all that it has itself, while it is away.
    """
    if settings.archive_bucket is not None:
        return _bucket_store()(settings.archive_bucket, cluster_id)
    if settings.archive_dir is not None:
        return FolderStore(files, settings.archive_dir.absolute(), cluster_id)
    return None
