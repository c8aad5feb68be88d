"""Verifying a view when somebody asks for it."""

from __future__ import annotations

from headrace.serve.parameter import text
from headrace.serve.route import Answer, Call, Route, Told, json_answer
from headrace.serve.scope import ADMIN, READ_VIEW
from headrace.serve.work import LOG

__all__ = ["PROOF_ROUTES"]


async def begin_proof(call: Call) -> Answer:
    served = call.served
    view = served.views.answering(call.names["view"]).name
    served.asked_proofs.begin(view)
    told = await served.work.run(lambda: served.asked_proofs.told(view), served.limits.read_s, LOG)
    return json_answer(told, status=202)


async def tell_proof(call: Call) -> Answer:
    served = call.served
    view = served.views.answering(call.names["view"]).name
    return json_answer(
        await served.work.run(lambda: served.asked_proofs.told(view), served.limits.read_s, LOG)
    )


_VIEW = text("view", "The name of a view.", chars_max=249, where="path")

PROOF_ROUTES = (
    Route(
        *("POST", "/v1/views/{view}/verify", ADMIN, begin_proof, "Verify a view"),
        about="What is served is held against what follows from the log, beside everything else. One view at a time."
        " A view of what a flow writes needs a run beside the server: headrace run --serve.",
        parameters=(_VIEW,),
        answers={202: Told("It runs; ask for it with GET.", "Proof")},
        problems=(404, 409, 503, 504),
    ),
    Route(
        *("GET", "/v1/views/{view}/verify", READ_VIEW, tell_proof, "How a view's verification goes"),
        about="And how the last one that was asked for went, also before a restart.",
        named="view",
        parameters=(_VIEW,),
        answers={200: Told("Its state, its progress, and the last result.", "Proof")},
        problems=(404, 503, 504),
    ),
)
