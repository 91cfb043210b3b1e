"""Tasks of an evaluation that a library prompts and scores by itself, such as those of lm-eval."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from learning.data.row_journal import RowJournal
from learning.data.rows import Row
from learning.evaluation.sampled_answers import AnswerSample
from learning.models.policy import Policy
from learning.samples.engine_protocol import EngineProtocol
from schemas.base import JsonObject


@dataclass(frozen=True)
class ScoringModel:
    """The model that a library's tasks are evaluated on."""

    engine: EngineProtocol
    policy: Policy
    """The engine's policy; without weights if workers sample."""
    load_weights: Callable[[], Policy]
    """Returns a policy whose forward can be called."""
    seed: int
    journal: RowJournal
    """Answers of a step that was killed."""
    on_progress: Callable[[int, int], None]
    """Receives the number of finished rows, and of tokens sampled since its last call."""


@dataclass(frozen=True)
class ScoredAnswers:
    """What a library says of one model, for P rows."""

    samples: list[AnswerSample]
    score_P: np.ndarray
    """Score of each answer in the task's first metric; NaN where that metric has no value per answer."""
    reported: Mapping[str, np.ndarray]
    """Values of every metric of the library by its name, (P,); NaN for rows that it does not apply to."""
    summary: JsonObject
    """Metrics over all answers of each task, as the library computes them."""


@runtime_checkable
class ScoredTasks(Protocol):
    """Tasks that a library prompts and scores."""

    @property
    def rows(self) -> list[Row]:
        """Return the problems, each task a family of its own."""
        ...

    @property
    def test_tasks(self) -> list[str]:
        """Return the names of the tasks that evaluate a test split."""
        ...

    def answer(self, model: ScoringModel) -> ScoredAnswers:
        """Return a model's answers to all rows with their scores. Raise StepError."""
        ...
