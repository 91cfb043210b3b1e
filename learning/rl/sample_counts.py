"""Counts of an RL stage's samples that taught the policy nothing, and the sentences that a run prints about them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from learning.rl.monitoring import list_equal_groups
from learning.samples.sample import Sample
from learning.samples.truncation import describe_truncated
from schemas.errors import StepError


@dataclass
class SampleCounts:
    """Counts over all iterations; a checkpoint holds them."""

    iterations: int = 0
    unscored_iterations: int = 0
    """Iterations in which no completion had a reward."""
    equal_iterations: int = 0
    """Iterations in which the completions of every group had the same reward."""
    groups: int = 0
    """Groups of at least two completions with a reward."""
    equal_groups: int = 0
    """Groups of these whose completions had the same reward."""
    completions: int = 0
    truncated: int = 0
    unscorable: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """First failure of each reward that has raised."""

    def add(self, samples: Sequence[Sample], failures: dict[str, str]) -> None:
        """Add the samples of an iteration, and the failures of rewards so far."""
        ended = [sample for sample in samples if sample.finish != "suspended"]
        equal = list_equal_groups(ended)
        self.iterations += 1
        self.unscored_iterations += bool(ended) and all(sample.reward is None for sample in ended)
        self.equal_iterations += bool(equal) and all(equal)
        self.groups += len(equal)
        self.equal_groups += sum(equal)
        self.completions += len(ended)
        self.truncated += sum(sample.finish == "length" for sample in ended)
        self.unscorable += sum(sample.reward is None for sample in ended)
        self.failures = failures | self.failures

    def describe(self, max_completion_length: int, max_turns: int | None = None) -> list[str]:
        """Return a sentence for each kind of samples that taught the policy nothing."""
        notices = describe_truncated(self.truncated, self.completions, max_completion_length, max_turns)
        if self.unscorable:
            reasons = "; ".join(self.failures.values()) or "a reward returned None for them"
            text = f"{self.unscorable} of {self.completions} completions have no reward: {reasons}"
            if self.unscored_iterations:
                text += f"; in {self.unscored_iterations} of {self.iterations} iterations all, so nothing was trained"
            notices.append(text)
        if self.equal_groups * 2 > self.groups or self.equal_iterations:
            text = (
                f"in {self.equal_groups} of {self.groups} groups all completions had the same reward, so that an "
                "advantage within the group is 0"
            )
            if self.equal_iterations:
                text += f"; in {self.equal_iterations} of {self.iterations} iterations this was so in every group"
            notices.append(f"{text}. Easier or harder prompts, more completions or a finer reward would teach more")
        return notices

    def to_json(self) -> dict[str, Any]:
        """Return the counts as plain values."""
        return asdict(self)

    def load(self, values: dict[str, Any]) -> None:
        """Restore what `to_json` returned."""
        vars(self).update(values)


def refuse_rewards_without_scores(samples: Sequence[Sample]) -> None:
    """Raise StepError for a reward that returned None for every completion of the stage's first iteration."""
    ended = [sample for sample in samples if sample.finish != "suspended"]
    if len(ended) < 2 or any(sample.reward is not None for sample in ended):
        return
    for name in ended[0].scores:
        if all(sample.scores.get(name) is None for sample in ended):
            raise StepError(
                f"reward {name}: it returns None for every one of the {len(ended)} completions of the first iteration, "
                f"so nothing can be learned; the first is of row {ended[0].row['id']!r}. None means that a completion "
                "cannot be scored: does the reward find what it needs in the rows (`answer`, `metadata`)?"
            )
