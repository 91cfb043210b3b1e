"""Trace-back based rescoring (VeriRL 2025, arXiv:2508.18462): attempts are scored by the attempts that follow them.

A model attempts a problem; an attempt that fails most tests is shown to the model again, and the new attempts are its
children. The score of an attempt with children is their mean score, so that a wrong start that leads to a correct
answer scores higher than one that does not. Pairs of rescored attempts train a reward model.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from learning.data.questions import make_question
from learning.data.rows import Row, read_rows, write_rows
from learning.generation.engines.torch import Engine
from learning.lookup import Inner, RewardFunction
from learning.models.policy import load_policy, set_determinism
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from schemas.errors import StepError

Share = Annotated[float, Field(ge=0, le=1)]
AGAIN = "{prompt}\nThis attempt is wrong:\n{attempt}\nTry again."


@dataclass
class Attempt:
    """A text with the share of tests it passes, and the attempts that followed from it."""

    text: str
    passed: float
    children: list["Attempt"] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Return the mean score of the children; without children, the share of tests passed."""
        return sum(child.score for child in self.children) / len(self.children) if self.children else self.passed

    def all(self) -> Iterator["Attempt"]:
        """Yield this attempt and all its descendants."""
        yield self
        for child in self.children:
            yield from child.all()


Try = Callable[[Sequence[tuple[Row, str | None]]], list[list[Attempt]]]
"""A function from problems, each with a failed attempt or None, to attempts at each."""


def grow_trees(rows: Sequence[Row], attempt: Try, *, reflect_below: float, rounds: int) -> list[list[Attempt]]:
    """Return attempts at every problem; for `rounds` rounds, those that pass less than `reflect_below` get children."""
    roots = attempt([(row, None) for row in rows])
    open_ = [(row, node) for row, nodes in zip(rows, roots, strict=True) for node in nodes]
    for _ in range(rounds):
        open_ = [(row, node) for row, node in open_ if node.passed < reflect_below]
        attempts = attempt([(row, node.text) for row, node in open_])
        for (_, node), children in zip(open_, attempts, strict=True):
            node.children = children
        open_ = [(row, child) for row, node in open_ for child in node.children]
    return roots


def list_pairs(attempts: Sequence[Attempt], *, margin: float, good: float, bad: float) -> list[tuple[Attempt, Attempt]]:
    """Return pairs (i, j) of attempts at one problem with r_i > r_j + margin, r_i > good and r_j > bad."""
    return [
        (better, worse)
        for better in attempts
        for worse in attempts
        if better.score > worse.score + margin and better.score > good and worse.score > bad
    ]


def rescored_pairs(
    context: Any,
    *,
    reward: RewardFunction,
    again: str = AGAIN,
    attempt_length: Annotated[int, Field(ge=1)] = 2000,
    num_generations: Annotated[int, Field(ge=1)] = 4,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 24,
    reflect_below: Share = 0.2,
    rounds: Annotated[int, Field(ge=0)] = 2,
    margin: Share = 0.4,
    good: Share = 0.8,
    bad: Share = 0.0,
) -> dict[str, float]:
    """For a `python` stage: `inputs` model and prompts, `produces` pairs of type preference_pairs.

    `reward` gives the share of tests that an attempt passes, from 0 to 1 (None counts as 0). A failed attempt is shown
    by the template `again` with {prompt} and the first `attempt_length` characters as {attempt}. Raise StepError if no
    pair is kept.
    """
    rows = read_rows(context.input("prompts"), "prompts")
    judge: Inner = reward
    shown = _Shown(again, attempt_length)
    attempt = _sampling(context, judge, shown, num_generations, temperature, max_completion_length)
    trees = grow_trees(rows, attempt, reflect_below=reflect_below, rounds=rounds)
    pairs: dict[tuple[str, str, str], Row] = {}
    for row, roots in zip(rows, trees, strict=True):
        nodes = [node for root in roots for node in root.all()]
        for better, worse in list_pairs(nodes, margin=margin, good=good, bad=bad):
            if better.text != worse.text:
                pairs.setdefault((row["id"], better.text, worse.text), _pair(row, better, worse))
    if not pairs:
        raise StepError("rescored_pairs: no pair is far enough apart; lower `margin` or `good`, or sample more")
    write_rows(context.output("pairs"), "preference_pairs", list(pairs.values()))
    attempts = [node for roots in trees for root in roots for node in root.all()]
    return {
        "pairs": len(pairs),
        "attempts": len(attempts),
        "reflected": sum(bool(node.children) for node in attempts),
        "rescored": sum(node.score != node.passed for node in attempts),
        "pass_rate": sum(node.passed for node in attempts) / len(attempts),
    }


@dataclass(frozen=True)
class _Shown:
    """How a failed attempt is shown to the model."""

    template: str
    longest: int

    def __post_init__(self) -> None:
        if "{attempt}" not in self.template:
            raise StepError("rescored_pairs: `again` must show {attempt}")

    def ask(self, row: Row, attempt: str) -> list[dict[str, str]]:
        """Return the prompt with the beginning of a failed attempt."""
        return make_question(self.template, row, attempt=attempt[: self.longest] or "?")


def _sampling(context: Any, reward: Inner, shown: _Shown, n: int, temperature: float, longest: int) -> Try:
    """Return a function that samples attempts from the stage's model and scores them with the reward."""
    set_determinism(context.seed, context.num_threads)
    policy = load_policy(context.input("model"), device=context.device)
    sampler = Sampler(Engine(policy), policy, Sampling(temperature, longest), context.seed, 0)

    def attempt(tasks: Sequence[tuple[Row, str | None]]) -> list[list[Attempt]]:
        requests = [SampleRequest(row, n, prompt=None if text is None else shown.ask(row, text)) for row, text in tasks]
        samples = iter(sampler.sample(requests))
        made = [[next(samples) for _ in range(n)] for _ in tasks]
        flat = [sample for of in made for sample in of]
        scores = iter(reward(rows=[t.row for t in flat], completions=[t.text for t in flat]))
        return [[Attempt(t.text, next(scores) or 0.0) for t in of] for of in made]

    return attempt


def _pair(row: Row, better: Attempt, worse: Attempt) -> Row:
    chosen, rejected = ([{"role": "assistant", "content": node.text}] for node in (better, worse))
    return row | {"chosen": chosen, "rejected": rejected, "margin": better.score - worse.score}
