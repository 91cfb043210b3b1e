"""Slot extractor: update the agent's experiences from a group whose rollouts differ in score.

An extractor receives the problem's `row`, the group's `rollouts` from best to worst, and the `experiences` so far, the
oldest first; it returns the new list of experiences. It is called only for groups whose scores differ, one after the
other, each with the result of the one before. It may ask the practising model (`sampler`) or a server (`account`).
(Training-Free GRPO, Cai et al. 2025, arXiv:2510.08191: the semantic advantage of a group.)
"""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.agents.rollouts import Rollout
from learning.api.spending import SpendingAccount
from learning.data.patterns import MatchTimeout, Pattern
from learning.data.questions import fill_template
from learning.data.rows import Row
from learning.samples.engine_protocol import Sampling
from learning.sampling.sampler import Sampler
from learning.sampling.verdicts import replies
from schemas.endpoint import Endpoint
from schemas.errors import StepError

TEMPLATE = "{subject}: in step {step} {best}, not {worst}"
ORDER = """Problem: {problem}

The best attempt (score {high}):
{best}

The worst attempt (score {low}):
{worst}

Say in one short sentence what to do on such problems."""
Temperature = Annotated[float, Field(ge=0)]
Tokens = Annotated[int, Field(ge=1)]


def first_difference(
    row: Row,
    rollouts: Sequence[Rollout],
    experiences: list[str],
    *,
    subject: str = r"[\s\S]+",
    action: str = r"[\s\S]+",
    template: str = TEMPLATE,
) -> list[str]:
    """Describe by a template the first step in which the best and the worst rollout acted differently.

    The action of a step is the match of `action` (its first group, if any) in the model's turn, the subject that of
    `subject` in the problem's last message; `template` is filled with {subject}, {step} (from 1), {best} and {worst}. A
    step in which the best rollout has no action gives no experience. A new experience replaces an earlier one with the
    same text before {best} and {worst}.
    """
    try:
        topic, deed = Pattern(subject), Pattern(action)
    except re.error as error:
        raise StepError(f"extractor first_difference: invalid pattern {error.pattern!r}: {error}") from error
    about = _find_match(topic, row["prompt"][-1]["content"])
    pairs = zip_longest(*([_find_match(deed, turn) for turn in one.actions] for one in (rollouts[0], rollouts[-1])))
    for step, (best, worst) in enumerate(pairs, 1):
        if best is not None and best != worst:
            fields = {"subject": about or "", "step": str(step), "best": best, "worst": worst or "nothing"}
            lesson, before = fill_template(template, fields), _fill_beginning(template, fields)
            same = [
                earlier
                for earlier in experiences
                if earlier == lesson or (before.strip() and earlier.startswith(before))
            ]
            return [*(earlier for earlier in experiences if earlier not in same), lesson]
    return experiences


def _find_match(pattern: Pattern, text: str) -> str | None:
    """Return the first match (its first group, if any); None if there is none within the time limit."""
    try:
        match = pattern.search(text)
    except MatchTimeout:
        return None
    return None if match is None else (match[1 if pattern.groups else 0] or "").strip() or None


def _fill_beginning(template: str, fields: dict[str, str]) -> str:
    """Return the common beginning of lessons about the same subject; empty if the template begins with an action."""
    return fill_template(re.split(r"\{best\}|\{worst\}", template, maxsplit=1)[0], fields)


def reflection(
    row: Row,
    rollouts: Sequence[Rollout],
    experiences: list[str],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    order: str = ORDER,
    temperature: Temperature = 0.0,
    max_completion_length: Tokens = 128,
) -> list[str]:
    """Ask the practising model for a lesson from its best and its worst attempt.

    Its prompt is `order` with {problem}, {best}, {worst}, {high} and {low} filled in, outside of any environment. If
    the prompt does not fit or the reply is empty, there is no experience.
    """
    messages = [{"role": "user", "content": fill_order(order, row, rollouts)}]
    texts = replies(sampler, [messages], n=1, sampling=Sampling(temperature, max_completion_length), rng=rng)[0]
    return add_experience(experiences, texts[0] if texts else "")


def endpoint(
    row: Row,
    rollouts: Sequence[Rollout],
    experiences: list[str],
    account: SpendingAccount,
    *,
    endpoint: Endpoint,
    order: str = ORDER,
    temperature: Temperature = 0.0,
    max_completion_length: Tokens = 128,
) -> list[str]:
    """As `reflection`, asking a model behind an endpoint."""
    from learning.agents.asking import ask_text  # the client takes half a second to import

    return add_experience(
        experiences,
        ask_text(endpoint, account, fill_order(order, row, rollouts), 0, temperature, max_completion_length),
    )


def fill_order(order: str, row: Row, rollouts: Sequence[Rollout]) -> str:
    """Return the prompt for a model about a group."""
    best, worst = rollouts[0], rollouts[-1]
    problem = "\n".join(message["content"] for message in row["prompt"] if message["role"] != "system")
    fields = {"problem": problem, "best": format_transcript(best), "worst": format_transcript(worst)}
    return fill_template(order, fields | {"high": f"{best.score:g}", "low": f"{worst.score:g}"})


def format_transcript(rollout: Rollout) -> str:
    """Return a rollout as lines of text."""
    steps = zip(rollout.actions, rollout.observations, strict=True)
    return "\n".join(f"{turn}\n=> {observation}" if observation else turn for turn, observation in steps)


def add_experience(experiences: list[str], text: str) -> list[str]:
    """Return the experiences with a new one, on one line, at the end; a known one is moved to the end."""
    lesson = " ".join(text.split())
    return [*(earlier for earlier in experiences if earlier != lesson), lesson] if lesson else experiences
