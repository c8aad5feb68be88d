"""A well-behaved client in a thread, which runs beside hostile clients and must not be affected by them."""

from __future__ import annotations

import threading
import time
import traceback
from abc import abstractmethod

__all__ = ["BystanderThread"]


class BystanderThread(threading.Thread):
    def __init__(self, name: str, pause_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self.problems: list[str] = []
        self.requests = 0
        self.slowest_s = 0.0
        self.pause_s = pause_s
        self.stop_requested = threading.Event()

    @abstractmethod
    def send_requests(self) -> None:
        """Send requests until ``stop_requested`` is set, and count them."""

    def run(self) -> None:
        try:
            self.send_requests()
        except Exception:
            self.problems.append(f"the bystander failed:\n{traceback.format_exc()}")

    def wait_for(self, requests: int, timeout_s: float = 60.0) -> None:
        """Wait until the bystander has sent this many requests, or has stopped."""
        deadline = time.monotonic() + timeout_s
        while self.requests < requests and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        if self.requests < requests:
            self.problems.append(f"the bystander received {self.requests} of {requests} responses")

    def finish(self, timeout_s: float = 240.0) -> list[str]:
        """Stop the bystander, and return its problems."""
        self.stop_requested.set()
        self.join(timeout_s)
        if self.is_alive():
            self.problems.append(f"the bystander did not stop within {timeout_s} s")
        if not self.requests:
            self.problems.append("the bystander never received a response")
        return self.problems
