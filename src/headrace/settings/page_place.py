"""Where the page is, unless something else is said."""

from __future__ import annotations

__all__ = ["FREE_LISTEN", "NOT_SERVED", "USUAL_LISTEN"]

USUAL_LISTEN = "127.0.0.1:8180"
FREE_LISTEN = "127.0.0.1:0"
NOT_SERVED = "off"
