"""Distillation from a remote teacher: request replies, score them, and count how each ended.

Every requested reply ends in exactly one way: not asked (a cap), failed, rejected, or accepted.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from learning.api.requests import Answer, Failed, Question, Responses, make_chat_question
from learning.data.questions import Inquiry
from learning.data.rows import Row
from schemas.endpoint import Endpoint
from schemas.errors import StepError

Score = Callable[[list[Row], list[str]], list[float | None]]
MISSING, ACCEPTED, FAILED, REJECTED = "missing", "accepted", "failed", "rejected"


@dataclass(frozen=True)
class Reply:
    """One reply for a problem, and how it ended."""

    row: Row
    ended: str
    """`missing`, `accepted`, or `failed` or `rejected` with a reason: `rejected: truncated`."""
    answer: Answer | None = None
    cached: bool = False
    text: str = ""


def find_endpoint(inquiries: Sequence[Inquiry]) -> Endpoint:
    """Return the endpoint of a teacher's questions; raise StepError if there are several."""
    first = inquiries[0].endpoint
    if any(inquiry.endpoint != first for inquiry in inquiries):
        raise StepError("teacher: a stage can use one endpoint; use a separate stage for each endpoint")
    return first


def make_questions(inquiries: Sequence[Inquiry], n: int, *, temperature: float, max_tokens: int) -> list[Question]:
    """Return `n` questions for every inquiry, in order."""
    how = {"temperature": temperature, "max_tokens": max_tokens}
    return [make_chat_question(inquiry.messages, index, **how) for inquiry in inquiries for index in range(n)]


def classify_replies(
    problems: Sequence[Row],
    inquiries: Sequence[Inquiry],
    asked: Responses,
    n: int,
    score: Score,
    min_reward: float | None,
) -> list[Reply]:
    """Return every reply with its result, in the order of the questions; `min_reward` None accepts all valid ones."""
    flat = [(row, inquiry) for row, inquiry in zip(problems, inquiries, strict=True) for _ in range(n)]
    ended = [_parse_answer(inquiry, answer) for (_, inquiry), answer in zip(flat, asked.answers, strict=True)]
    readable = [i for i, (_, text) in enumerate(ended) if text]
    scores = score([flat[i][0] for i in readable], [ended[i][1] for i in readable]) if readable else []
    done: set[tuple[str, str]] = set()
    for i, value in zip(readable, scores, strict=True):
        ended[i] = (_judge(flat[i][0], ended[i][1], value, min_reward, done), ended[i][1])
    return [
        Reply(row, how, answer if isinstance(answer, Answer) else None, cached, text)
        for (row, _), (how, text), answer, cached in zip(flat, ended, asked.answers, asked.cached, strict=True)
    ]


def _parse_answer(inquiry: Inquiry, answer: Answer | Failed | None) -> tuple[str, str]:
    """Return the preliminary result of a reply and its text, empty if it cannot be scored."""
    if answer is None:
        return MISSING, ""
    if isinstance(answer, Failed):
        return f"{FAILED}: {answer.reason}", ""
    if answer.finish == "length":
        return f"{REJECTED}: truncated", ""
    if answer.finish == "content_filter":
        return f"{REJECTED}: content filter", ""
    text = inquiry.kept(answer.text)
    return (ACCEPTED, text) if text else (f"{REJECTED}: unreadable", "")


def _judge(row: Row, text: str, score: float | None, min_reward: float | None, done: set[tuple[str, str]]) -> str:
    if min_reward is not None:
        if score is None:
            return f"{REJECTED}: unscorable"
        if score < min_reward:
            return f"{REJECTED}: reward"
    if (row["id"], text) in done:
        return f"{REJECTED}: duplicate"
    done.add((row["id"], text))
    return ACCEPTED


class ReplyCounts:
    """Counts of results by family of problems; every line of its table adds up."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.ends: dict[str, Counter[str]] = {}
        self.took: dict[str, Counter[str]] = {}

    def add(self, replies: Sequence[Reply]) -> None:
        """Count replies."""
        for reply in replies:
            family = reply.row["family"]
            self.ends.setdefault(family, Counter())[reply.ended] += 1
            took = self.took.setdefault(family, Counter())
            if reply.answer is not None:
                tokens = {"input": reply.answer.input_tokens, "output": reply.answer.output_tokens}
                took.update({"answered": 1, "cached": int(reply.cached), **tokens})

    def table(self, problems: Mapping[str, int]) -> list[Row]:
        """Return one line per family of problems and, if there are several, one of all, with the same columns."""
        names = sorted({name for ends in self.ends.values() for name in ends if ": " in name})
        lines = [self._line(f, problems[f], self.ends[f], self.took[f], names) for f in sorted(problems)]
        if len(lines) == 1:
            return lines
        ends, took = (sum(of.values(), Counter()) for of in (self.ends, self.took))
        return [*lines, self._line("all", sum(problems.values()), ends, took, names)]

    def _line(self, family: str, problems: int, ends: Counter[str], took: Counter[str], names: list[str]) -> Row:
        tokens, price = (took["input"], took["output"]), self.endpoint.price
        line: Row = {
            "family": family,
            "problems": problems,
            "wanted": ends.total(),
            "missing": ends[MISSING],
            "asked": ends.total() - ends[MISSING],
            "answered": took["answered"],
            "cached": took["cached"],
            **{name: ends[name] for name in names},
            "accepted": ends[ACCEPTED],
            "yield": ends[ACCEPTED] / took["answered"] if took["answered"] else 0.0,
            "input_tokens": tokens[0],
            "output_tokens": tokens[1],
            "cost": price.cost(*tokens) if price else None,
        }
        failed, rejected = (sum(n for name, n in ends.items() if name.startswith(word)) for word in (FAILED, REJECTED))
        assert line["asked"] == line["answered"] + failed
        assert line["answered"] == line["accepted"] + rejected
        return line
