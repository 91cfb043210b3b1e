"""Completions of a remote teacher: asked for within limits, rejected by rewards, counted."""

from functools import partial
from typing import Any

from learning.inquiry import Inquiry
from learning.lookup import bind
from learning.remote.client import ask
from learning.remote.gate import Cap
from learning.remote.lessons import ACCEPTED, Reply, endpoint_of, questions, replies, yield_table
from learning.remote.question import Asked, Failed
from learning.sampling import weighted_scores
from schemas.stages.synthesize import Synthesize
from tasks.context import Context
from tasks.remote import EVERY, Bills, desk_of

Row = dict[str, Any]
SHOWN = 5
"""Messages of failed requests that are kept in the details."""


def inquired(
    stage: Synthesize, context: Context, problems: list[Row], inquiries: list[Inquiry]
) -> tuple[list[Row], list[Row], Row]:
    """Replies of a remote model, one row each; the rows that pass; and how all of them ended."""
    endpoint, n = endpoint_of(inquiries), stage.num_generations
    wanted = questions(inquiries, n, temperature=stage.temperature, max_tokens=stage.max_completion_length)
    desk = desk_of(context)
    bills = Bills(context, desk)

    def heard(done: int) -> None:
        if done % EVERY == 0 or done == len(wanted):
            bills.tell()
            context.progress(done, len(wanted))

    try:
        asked = ask(endpoint, desk, wanted, cap=Cap(stage.max_tokens_total, stage.max_cost), on_answer=heard)
        rewards = [bind(use, f"rewards.{i}", context.inputs) for i, use in enumerate(stage.rewards)]
        spender = desk_of(context, stage.max_tokens_total, stage.max_cost)
        score = partial(weighted_scores, rewards, [use.weight for use in stage.rewards], desk=spender)
        found = replies(problems, inquiries, asked, n, score, stage.min_reward if stage.rewards else None)
    finally:
        bills.tell()
    table = yield_table(problems, found, endpoint)
    answered = [_row(reply) for reply in found if reply.answer is not None]
    return answered, [_row(r) for r in found if r.ended == ACCEPTED], told(stage, table, asked)


def told(stage: Synthesize, table: list[Row], asked: Asked) -> Row:
    """The yield report: `table` by family, `metrics` of all, what failed, and in a sentence what became of it all."""
    whole = table[-1]
    failed = [answer for answer in asked.answers if isinstance(answer, Failed)]
    numbers = {name: value for name, value in whole.items() if name not in ("family", "yield") and value is not None}
    metrics = {
        **{name.replace(": ", ".").replace(" ", "_"): value for name, value in numbers.items()},
        "paid": whole["answered"] - whole["cached"],
        "failed": len(failed),
        "retried": sum(asked.retries.values()),
        "throttled": asked.retries.get("throttled", 0),
        "unscorable": whole.get("rejected: unscorable", 0),
        "capped": whole["missing"] > 0,
    }
    ends = ", ".join(f"{whole[name]} {name}" for name in whole if ": " in name and whole[name])
    said = [f"{one.reason}: {one.said}" for one in failed][:SHOWN]
    details: Row = {"retries": dict(sorted(asked.retries.items())), "failures": said}
    if whole["missing"]:
        limits = Cap(stage.max_tokens_total, stage.max_cost)
        details["capped"] = f"{whole['missing']} of {whole['wanted']} replies were not asked for: the cap is {limits}"
    words = "; ".join([ends, *details["failures"][:1], details.get("capped", "")]).strip("; ")
    return {"table": table, "metrics": metrics, "details": details, "why": f" ({words})" if words else ""}


def _row(reply: Reply) -> Row:
    return reply.row | {"completion": [{"role": "assistant", "content": reply.text}]}
