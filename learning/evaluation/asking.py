"""How a solver of an evaluation queries the model: calls are counted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from learning.data.row_journal import RowJournal
from learning.data.rows import Row
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
    """Receives the number of sampled tokens."""
    journal: RowJournal | None = None
    """Answers of a step that was killed."""

    def __call__(self, rows: list[Row]) -> list[str]:
        """Return one text per row; its random stream depends on the seed and the row's id."""
        self.calls += len(rows)
        self.longest = max([self.longest, *(len(row["prompt"][-1]["content"]) for row in rows)])
        how = {"n": 1, "seed": self.seed, "sampling": self.sampling, "on_progress": self._count_tokens}
        how["journal"] = self.journal
        return [group[0].text for group in sample_rows(self.engine, self.tokenizer, rows, **how)]

    def _count_tokens(self, done: int, tokens: int) -> None:
        self.spend(tokens)


def run_solver(solver: Bound, asking: Asking, rows: list[Row], n: int) -> list[list[AnswerSample]]:
    """Return `n` answers of a solver to every row; raises StepError if it returns another number of texts."""
    repeated = [row | {"id": f"{row['id']}#{i}"} for row in rows for i in range(n)]
    texts = solver(repeated, asking)
    if len(texts) != len(repeated):
        raise StepError(f"solver {solver.name}: {len(texts)} texts for {len(repeated)} problems; return one for each")
    samples = [AnswerSample(text, "stop") for text in texts]
    return [samples[start : start + n] for start in range(0, len(samples), n)]
