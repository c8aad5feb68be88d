"""An S3 server for tests, observed from outside by plain HTTP. ``s3_server`` runs in its process."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from faults.servers.fork_server import ROOT, parent_death_prefix
from faults.servers.server import spawn
from faults.wait import until
from headrace.log.archive_store import BucketAddress

__all__ = ["CREDENTIALS", "S3Server", "join_archive_threads", "s3"]

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests-key-id",
    "AWS_SECRET_ACCESS_KEY": "tests-secret-that-is-never-shown",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
}
_numbers = itertools.count(1)
_JOIN_S = 10.0


class S3Server:
    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="hr-s3-"))
        command = [*parent_death_prefix(), sys.executable, "-m", "tests.support.s3_server", str(self.home)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = spawn(command, self.home / "server.log", {"PYTHONPATH": path})
        until(self._listens, "the S3 server to listen")
        self.port = int((self.home / "port").read_text())

    def _listens(self) -> bool:
        assert self._process.poll() is None, (self.home / "server.log").read_text()
        return (self.home / "port").exists()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fresh_bucket(self) -> str:
        name = f"bucket-{next(_numbers)}"
        self._request(f"/{name}", "PUT")
        return name

    def address(self, bucket: str, prefix: str = "") -> BucketAddress:
        return BucketAddress(bucket, prefix, "http", f"127.0.0.1:{self.port}")

    def objects(self, bucket: str) -> dict[str, int]:
        """Sizes by key, without pyarrow's placeholders for folders."""
        sizes, after = {}, ""
        while True:
            page = ElementTree.fromstring(self._request(f"/{bucket}?list-type=2&start-after={after}"))
            names = page.tag.removesuffix("ListBucketResult")
            for content in page.iter(f"{names}Contents"):
                after = content.findtext(f"{names}Key", "")
                if not after.endswith("/"):
                    sizes[after] = int(content.findtext(f"{names}Size", "-1"))
            if page.findtext(f"{names}IsTruncated") != "true":
                return sizes

    def change(self, bucket: str, key: str, position: int) -> None:
        """Change one byte of an object."""
        data = bytearray(self._request(f"/{bucket}/{key}"))
        data[position] ^= 0xFF
        self._request(f"/{bucket}/{key}", "PUT", bytes(data))

    def delete(self, bucket: str, key: str) -> None:
        self._request(f"/{bucket}/{key}", "DELETE")

    def _request(self, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
        # moto only checks that a request has credentials.
        headers = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request",
            "Content-Type": "application/octet-stream",
        }
        request = urllib.request.Request(self.endpoint + path, body, headers, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=240
        ) as response:
            return response.read()

    def requests(self, bucket: str) -> list[str]:
        """The requests for a bucket, oldest first."""
        lines = (self.home / "requests").read_text().splitlines()
        return [line for line in lines if f" /{bucket}/" in line or f" /{bucket}?" in line]

    @property
    def injected_faults(self) -> int:
        """The number of requests to which a rule applied, in total."""
        path = self.home / "injected_faults"
        return int(path.read_text()) if path.exists() else 0

    @contextmanager
    def rule(self, action: str, method: str = "", passing: int = 0) -> Iterator[None]:
        """In the block, ``hold``, ``refuse`` or ``spoil`` requests of the method, after the first ``passing`` ones."""
        fresh = self.home / "rule.new"
        name = f"rule-{next(_numbers)}"
        fresh.write_text(json.dumps({"name": name, "action": action, "method": method, "passing": passing}))
        fresh.rename(self.home / "rule")
        try:
            yield
        finally:
            (self.home / "rule").unlink()

    def pause(self) -> None:
        """Accept connections without responding."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.home)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self._process


@functools.cache
def _shared() -> S3Server:
    # Only once: a change may reallocate the environment while threads of a client read it.
    os.environ.update(CREDENTIALS)
    server = S3Server()
    atexit.register(server.close)
    return server


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """One server for all tests of this process; each uses its own buckets. Credentials are in the environment."""
    yield _shared()
    join_archive_threads()


def join_archive_threads() -> None:
    """Wait for reads and moves that the test did not finish, so that they do not affect the next test."""
    deadline = time.monotonic() + _JOIN_S
    for thread in threading.enumerate():
        if thread.name.startswith("headrace-archive"):
            thread.join(max(0.0, deadline - time.monotonic()))
