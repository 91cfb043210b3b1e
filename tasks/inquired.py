"""Completions of a remote teacher: asked for within limits, rejected by rewards, counted."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from learning.api.client import ask
from learning.api.concurrency_limiter import Cap
from learning.api.distillation import ACCEPTED, Reply, ReplyCounts, classify_replies, find_endpoint, make_questions
from learning.api.requests import Answer, Failed, Responses
from learning.api.response_store import Spent
from learning.data.teacher_request import Inquiry
from learning.evaluation.sampled_answers import weighted_scores
from learning.lookup import bind
from schemas.stages.synthesize import Synthesize
from tasks.context import Context
from tasks.remote import EVERY, Bills, desk_of

Row = dict[str, Any]
SHOWN = 5
"""Messages of failed requests that are kept in the details."""


class Inquired:
    """The replies of one stage, some problems after the others; what any of them takes counts towards its cap."""

    def __init__(self, stage: Synthesize, context: Context, inquiries: list[Inquiry], total: int):
        self.stage, self.context, self.total = stage, context, total
        self.endpoint = find_endpoint(inquiries)
        self.desk = desk_of(context)
        self.bills = Bills(context, self.desk)
        rewards = [bind(use, f"rewards.{i}", context.inputs) for i, use in enumerate(stage.rewards)]
        payer = desk_of(context, stage.max_tokens_total, stage.max_cost)
        self.score = partial(weighted_scores, rewards, [use.weight for use in stage.rewards], desk=payer, shown=set())
        self.ends = ReplyCounts(self.endpoint)
        self.used, self.done = Spent(), 0
        self.retries: Counter[str] = Counter()
        self.failures: list[Failed] = []

    def some(self, problems: list[Row], inquiries: list[Inquiry]) -> tuple[list[Row], list[Row]]:
        """Replies for some problems, one row each, and the rows of those that pass. Raises StepError."""
        stage, n = self.stage, self.stage.num_generations
        find_endpoint([Inquiry(self.endpoint, ()), *inquiries])
        wanted = make_questions(inquiries, n, temperature=stage.temperature, max_tokens=stage.max_completion_length)
        before = self.done * n

        def heard(done: int) -> None:
            if done % EVERY == 0 or done == len(wanted):
                self.bills.tell()
                self.context.progress(before + done, self.total * n)

        cap = Cap(stage.max_tokens_total, stage.max_cost, self.used)
        try:
            asked = ask(self.endpoint, self.desk, wanted, cap=cap, on_answer=heard)
            found = classify_replies(
                problems, inquiries, asked, n, self.score, stage.min_reward if stage.rewards else None
            )
        finally:
            self.bills.tell()
        self._count(asked, found, len(problems))
        return [_row(r) for r in found if r.answer is not None], [_row(r) for r in found if r.ended == ACCEPTED]

    def _count(self, asked: Responses, found: list[Reply], problems: int) -> None:
        self.ends.add(found)
        self.done += problems
        self.retries.update(asked.retries)
        self.failures += [answer for answer in asked.answers if isinstance(answer, Failed)]
        price = self.endpoint.price
        for answer in asked.answers:
            if isinstance(answer, Answer):
                tokens = answer.input_tokens, answer.output_tokens
                self.used += Spent(*tokens, price.cost(*tokens) if price else 0.0)

    def report(self, problems: Mapping[str, int]) -> tuple[list[Row], Row, Row]:
        """The yield by family, and further metrics and details."""
        table = self.ends.table(problems)
        whole = table[-1]
        numbers = {
            name: value for name, value in whole.items() if name not in ("family", "yield") and value is not None
        }
        metrics = {
            **{name.replace(": ", ".").replace(" ", "_"): value for name, value in numbers.items()},
            "paid": whole["answered"] - whole["cached"],
            "failed": len(self.failures),
            "retried": self.retries.total(),
            "throttled": self.retries["throttled"],
            "unscorable": whole.get("rejected: unscorable", 0),
            "capped": whole["missing"] > 0,
        }
        said = [f"{one.reason}: {one.said}" for one in self.failures[:SHOWN]]
        details: Row = {"retries": dict(sorted(self.retries.items())), "failures": said}
        if whole["missing"]:
            cap = Cap(self.stage.max_tokens_total, self.stage.max_cost)
            details["capped"] = f"{whole['missing']} of {whole['wanted']} replies were not asked for: the cap is {cap}"
        return table, metrics, details

    def why(self, problems: Mapping[str, int]) -> str:
        """What became of replies, in a sentence for an error."""
        table, _, details = self.report(problems)
        ends = ", ".join(f"{table[-1][name]} {name}" for name in table[-1] if ": " in name)
        return "; ".join(part for part in (ends, *details["failures"][:1], details.get("capped")) if part)


def _row(reply: Reply) -> Row:
    return reply.row | {"completion": [{"role": "assistant", "content": reply.text}]}
