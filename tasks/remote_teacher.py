"""Completions of a remote teacher: requested within limits, filtered by rewards, counted."""

from collections import Counter
from collections.abc import Mapping
from functools import partial

from learning.api.client import ask
from learning.api.concurrency_limiter import Cap
from learning.api.distillation import ACCEPTED, Reply, ReplyCounts, classify_replies, find_endpoint, make_questions
from learning.api.requests import Answer, Failed, Responses
from learning.api.response_store import Spent
from learning.data.questions import Inquiry
from learning.data.rows import Row
from learning.evaluation.sampled_answers import compute_weighted_scores
from learning.lookup import bind
from schemas.stages.synthesize import Synthesize
from tasks.context import Context
from tasks.remote import ANSWERS_PER_REPORT, SpendingReporter, open_account

SHOWN = 5
"""Most messages of failed requests in the details."""


class RemoteTeacher:
    """The replies to one stage, one batch of problems after the other; all count towards the cap of the stage."""

    def __init__(self, stage: Synthesize, context: Context, inquiries: list[Inquiry], total: int):
        self.stage, self.context, self.total = stage, context, total
        self.endpoint = find_endpoint(inquiries)
        self.account = open_account(context)
        self.spending = SpendingReporter(context, self.account)
        rewards = [bind(use, f"rewards.{i}", context.inputs) for i, use in enumerate(stage.rewards)]
        reward_account = open_account(context, stage.max_tokens_total, stage.max_cost)
        self.score = partial(
            compute_weighted_scores, rewards, [use.weight for use in stage.rewards], account=reward_account, shown={}
        )
        self.ends = ReplyCounts(self.endpoint)
        self.used, self.done = Spent(), 0
        self.retries: Counter[str] = Counter()
        self.failures: list[Failed] = []

    def answer(self, problems: list[Row], inquiries: list[Inquiry]) -> tuple[list[Row], list[Row]]:
        """Return the replies to a batch of problems, one row each, and the accepted rows. Raises StepError."""
        stage, n = self.stage, self.stage.num_generations
        find_endpoint([Inquiry(self.endpoint, ()), *inquiries])
        questions = make_questions(inquiries, n, temperature=stage.temperature, max_tokens=stage.max_completion_length)
        before = self.done * n

        def report_answers(done: int) -> None:
            if done % ANSWERS_PER_REPORT == 0 or done == len(questions):
                self.spending.report()
                self.context.progress(before + done, self.total * n)

        cap = Cap(stage.max_tokens_total, stage.max_cost, self.used)
        try:
            responses = ask(self.endpoint, self.account, questions, cap=cap, on_answer=report_answers)
            replies = classify_replies(
                problems, inquiries, responses, n, self.score, stage.min_reward if stage.rewards else None
            )
        finally:
            self.spending.report()
        self._count(responses, replies, len(problems))
        return [_row(r) for r in replies if r.answer is not None], [_row(r) for r in replies if r.ended == ACCEPTED]

    def _count(self, responses: Responses, replies: list[Reply], problems: int) -> None:
        self.ends.add(replies)
        self.done += problems
        self.retries.update(responses.retries)
        self.failures += [answer for answer in responses.answers if isinstance(answer, Failed)]
        price = self.endpoint.price
        for answer in responses.answers:
            if isinstance(answer, Answer):
                tokens = answer.input_tokens, answer.output_tokens
                self.used += Spent(*tokens, price.cost(*tokens) if price else 0.0)

    def report(self, problems: Mapping[str, int]) -> tuple[list[Row], Row, Row]:
        """Return the yield table by family, and further metrics and details."""
        table = self.ends.table(problems)
        totals = table[-1]
        numbers = {
            name: value for name, value in totals.items() if name not in ("family", "yield") and value is not None
        }
        metrics = {
            **{name.replace(": ", ".").replace(" ", "_"): value for name, value in numbers.items()},
            "paid": totals["answered"] - totals["cached"],
            "failed": len(self.failures),
            "retried": self.retries.total(),
            "throttled": self.retries["throttled"],
            "unscorable": totals.get("rejected: unscorable", 0),
            "capped": totals["missing"] > 0,
        }
        messages = [f"{one.reason}: {one.message}" for one in self.failures[:SHOWN]]
        details: Row = {"retries": dict(sorted(self.retries.items())), "failures": messages}
        if totals["missing"]:
            cap = Cap(self.stage.max_tokens_total, self.stage.max_cost)
            details["capped"] = (
                f"{totals['missing']} of {totals['wanted']} replies were not requested: the cap is {cap}"
            )
        return table, metrics, details

    def describe_ends(self, problems: Mapping[str, int]) -> str:
        """Return the outcomes of the replies as part of an error message."""
        table, _, details = self.report(problems)
        ends = ", ".join(f"{table[-1][name]} {name}" for name in table[-1] if ": " in name)
        return "; ".join(part for part in (ends, *details["failures"][:1], details.get("capped")) if part)


def _row(reply: Reply) -> Row:
    return reply.row | {"completion": [{"role": "assistant", "content": reply.text}]}
