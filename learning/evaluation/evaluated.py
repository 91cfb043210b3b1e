"""What one evaluation of a model gave, over generated problems and the tasks of a library."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from learning.evaluation.role_scores import RoleScores
from learning.evaluation.sampled_answers import AnswerSample
from learning.evaluation.scored_tasks import ScoredAnswers
from schemas.base import JsonObject


@dataclass(frozen=True)
class Evaluated:
    """What one evaluation of a model gave, for P problems and N samples of each."""

    samples: list[list[AnswerSample]]
    score_PN: np.ndarray
    calls: dict[str, int]
    """Counts of a solver's calls."""
    reported: dict[str, np.ndarray] = field(default_factory=dict)
    """Metrics that a library reports of each problem, (P,); NaN for the problems of others."""
    summary: JsonObject = field(default_factory=dict)
    """Metrics of a library's tasks over all their problems."""
    roles: Mapping[str, RoleScores] = field(default_factory=dict)
    """Of a team, what each role earned."""

    def extend(self, answers: ScoredAnswers) -> "Evaluated":
        """Return the same with the answers to a library's tasks after it."""
        before, after = len(self.samples), len(answers.samples)
        own = {name: np.concatenate([value_P, np.full(after, np.nan)]) for name, value_P in self.reported.items()}
        for name, value_P in answers.reported.items():
            own.setdefault(name, np.full(before + after, np.nan))[before:] = value_P
        samples = [*self.samples, *([one] for one in answers.samples)]
        score_PN = np.concatenate([self.score_PN, answers.score_P[:, None]])
        return Evaluated(samples, score_PN, self.calls, own, self.summary | answers.summary)
