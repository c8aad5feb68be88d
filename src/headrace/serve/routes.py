"""All routes. A kind of thing that comes later adds its own here, and nothing else changes."""

from __future__ import annotations

from headrace.serve.browser_routes import BROWSER_ROUTES
from headrace.serve.console.group_routes import GROUP_ROUTES
from headrace.serve.console.log_routes import LOG_ROUTES
from headrace.serve.dead.dead_routes import DEAD_ROUTES
from headrace.serve.observed.observed_routes import OBSERVED_ROUTES
from headrace.serve.operation_routes import OPERATION_ROUTES
from headrace.serve.page.page_routes import PAGE_ROUTES
from headrace.serve.proofs.proof_routes import PROOF_ROUTES
from headrace.serve.sql.sql_routes import SQL_ROUTES
from headrace.serve.standings.standing_routes import STANDING_ROUTES
from headrace.serve.subscriptions.events import SUBSCRIPTION_ROUTES
from headrace.serve.topic_routes import TOPIC_ROUTES
from headrace.serve.view_routes import VIEW_ROUTES

__all__ = ["ROUTES"]

ROUTES = (
    *SUBSCRIPTION_ROUTES,
    *VIEW_ROUTES,
    *STANDING_ROUTES,
    *SQL_ROUTES,
    *TOPIC_ROUTES,
    *LOG_ROUTES,
    *GROUP_ROUTES,
    *DEAD_ROUTES,
    *PROOF_ROUTES,
    *OBSERVED_ROUTES,
    *OPERATION_ROUTES,
    *BROWSER_ROUTES,
    *PAGE_ROUTES,
)
