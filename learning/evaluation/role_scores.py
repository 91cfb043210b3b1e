"""Scores of the roles of a team, and tables of them.

Shapes: P problems, N episodes of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from learning.data.rows import Row
from learning.evaluation.evaluation import Compared, Scores, make_comparisons, make_table
from schemas.base import JsonObject


@dataclass(frozen=True)
class RoleScores:
    """What a role said and earned in every episode."""

    score_PN: np.ndarray
    """NaN where it has not spoken or cannot be scored."""
    text_PN: np.ndarray
    """Its last turns; empty where it has not spoken."""
    turns_PN: np.ndarray
    """Number of its turns."""


def average_roles(scores: Mapping[str, RoleScores], roles: Sequence[str]) -> np.ndarray:
    """Return the mean score of some roles in each episode (P, N), over those that have one; else NaN."""
    score_RPN = np.stack([scores[role].score_PN for role in roles])
    known_RPN = ~np.isnan(score_RPN)
    count_PN = known_RPN.sum(0)
    total_PN = np.where(known_RPN, score_RPN, 0.0).sum(0)
    return np.where(count_PN > 0, total_PN / np.maximum(count_PN, 1), np.nan)


def tabulate_roles(
    stage: Compared, teams: Mapping[str, Mapping[str, RoleScores]], families: Sequence[str | None], seed: int
) -> JsonObject:
    """Return what each role earned by team: lines of a table and of comparisons, as those of teams, with `role`.

    A team in which a role has no score is not in its table, and its role is not compared.
    """
    table: list[Row] = []
    comparisons: list[Row] = []
    for role in next(iter(teams.values())):
        own = {team: of_role[role] for team, of_role in teams.items() if not np.isnan(of_role[role].score_PN).all()}
        if not own:
            continue
        scores = Scores({t: s.score_PN for t, s in own.items()}, families, texts={t: s.text_PN for t, s in own.items()})
        lines = make_table(stage, scores, seed)
        table += [{"role": role, **line, "turns": float(own[line["model"]].turns_PN.mean())} for line in lines]
        if own.keys() == teams.keys():
            comparisons += [{"role": role, **line} for line in make_comparisons(stage, scores, seed)]
    return {"table": table, "comparisons": comparisons}
