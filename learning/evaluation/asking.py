"""What a program of an evaluation asks a model with, counted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from learning.data.row_journal import RowJournal
from learning.evaluation.sampled_answers import AnswerSample, sample_rows
from learning.lookup import Bound
from learning.samples.engine_protocol import EngineProtocol, Sampling
from schemas.errors import StepError


@dataclass
class Asking:
    """Answers rows with one completion each; counts calls, and remembers the longest last message in characters."""

    engine: EngineProtocol
    tokenizer: Any
    sampling: Sampling
    seed: int
    calls: int = 0
    longest: int = 0
    spend: Callable[[int], None] = lambda tokens: None
    """Hears how many tokens were sampled."""
    journal: RowJournal | None = None
    """Answers of a step that was killed."""

    def __call__(self, rows: list[dict[str, Any]]) -> list[str]:
        """One text per row; its random stream depends on the seed and the row's id."""
        self.calls += len(rows)
        self.longest = max([self.longest, *(len(row["prompt"][-1]["content"]) for row in rows)])
        how = {"n": 1, "seed": self.seed, "sampling": self.sampling, "on_progress": self._told}
        how["journal"] = self.journal
        return [group[0].text for group in sample_rows(self.engine, self.tokenizer, rows, **how)]

    def _told(self, done: int, tokens: int) -> None:
        self.spend(tokens)


def run_program(program: Bound, asking: Asking, rows: list[dict[str, Any]], n: int) -> list[list[AnswerSample]]:
    """`n` answers of a program to every row. Raises StepError when it gives another number of texts."""
    repeated = [row | {"id": f"{row['id']}#{i}"} for row in rows for i in range(n)]
    texts = program(repeated, asking)
    if len(texts) != len(repeated):
        raise StepError(f"solver {program.name}: {len(texts)} texts for {len(repeated)} problems")
    samples = [AnswerSample(text, "stop") for text in texts]
    return [samples[start : start + n] for start in range(0, len(samples), n)]
