"""Metrics of an evaluation: from which samples were correct to one value per problem.

Shapes: P problems, N samples of each. `correct_PN` is 1 or 0, NaN where a sample could not be scored; a problem's value
is NaN when it cannot be measured. A metric asks by name: `correct_PN`, `score_PN`, `text_PN`, and `first_PN`,
the scores of the first model of the table on the same problems, `answer_logprob_P`, and `reported`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.special import comb

from learning.rewards.answers import extract_final_answer, normalise_answer
from schemas.errors import StepError


def accuracy(correct_PN: np.ndarray) -> np.ndarray:
    """Share of correct samples."""
    counted_P = (~np.isnan(correct_PN)).sum(1)
    return np.where(counted_P > 0, np.nansum(correct_PN, 1) / np.maximum(counted_P, 1), np.nan)


def mean_score(score_PN: np.ndarray) -> np.ndarray:
    """Mean score of the samples, for scores that are more than right or wrong, such as what a player wins."""
    counted_P = (~np.isnan(score_PN)).sum(1)
    return np.where(counted_P > 0, np.nansum(score_PN, 1) / np.maximum(counted_P, 1), np.nan)


def pass_at(correct_PN: np.ndarray, *, k: Annotated[int, Field(ge=1)]) -> np.ndarray:
    """Probability that one of k samples is correct, without bias: 1 − C(n−c, k) / C(n, k) (Chen et al. 2021, eq. 1).

    NaN for problems with fewer than k samples.
    """
    n_P = (~np.isnan(correct_PN)).sum(1)
    wrong_P = n_P - np.nansum(correct_PN, 1)
    return np.where(n_P >= k, 1 - comb(wrong_P, k) / np.maximum(comb(n_P, k), 1), np.nan)


def cons(
    correct_PN: np.ndarray,
    text_PN: np.ndarray,
    *,
    k: Annotated[int, Field(ge=1)],
    marker: str | None = None,
    ignore_case: bool = False,
) -> np.ndarray:
    """Whether the answer that most of the first k samples give is correct (self-consistency, Wang et al. 2022).

    Of answers with equally many votes the one given first counts; `marker` and `ignore_case` are those of
    `answers.exact`. NaN for problems with fewer than k samples, or where no sample has an answer.
    """
    consistent = np.full(len(correct_PN), np.nan)
    for p, (correct_N, text_N) in enumerate(zip(correct_PN, text_PN, strict=True)):
        votes: dict[str, list[int]] = {}
        for n, answer in enumerate(_answers(text_N[:k], marker, ignore_case)):
            if answer is not None:
                votes.setdefault(answer, []).append(n)
        if len(text_N) >= k and votes:
            consistent[p] = correct_N[max(votes.values(), key=len)[0]]
    return consistent


def distinct(
    correct_PN: np.ndarray,
    text_PN: np.ndarray,
    *,
    right: bool = True,
    marker: str | None = None,
    ignore_case: bool = False,
) -> np.ndarray:
    """How many different answers the samples of a problem give; with `right` only correct ones are counted."""
    shares = []
    for correct_N, text_N in zip(correct_PN, text_PN, strict=True):
        answers = _answers(text_N, marker, ignore_case)
        pairs = zip(answers, correct_N, strict=True)
        shares.append(len({answer for answer, ok in pairs if answer is not None and (ok == 1 or not right)}))
    return np.array(shares, dtype=float)


def win_rate(score_PN: np.ndarray, first_PN: np.ndarray) -> np.ndarray:
    """Share of pairs of samples in which the model scores higher than the first model; a tie is half a win."""
    pairs_PNM = score_PN[:, :, None] - first_PN[:, None, :]
    won_PNM = np.where(np.isnan(pairs_PNM), np.nan, (np.sign(pairs_PNM) + 1) / 2)
    counted_P = (~np.isnan(won_PNM)).sum((1, 2))
    return np.where(counted_P > 0, np.nansum(won_PNM, (1, 2)) / np.maximum(counted_P, 1), np.nan)


def f1(correct_PN: np.ndarray, text_PN: np.ndarray, *, positive: str = "yes") -> np.ndarray:
    """F1 of the decision `positive` over all samples of all problems: 2·TP / (2·TP + FP + FN) (AdaSearch 2025).

    The other decision is any other text. Whether `positive` would be right follows from the decisions that are
    correct, or wrong; a problem whose samples are all neither one nor the other counts as one where it would be. The
    mean over problems is F1; the value of one is F1 + (2·TP_p − F1·D_p) / mean(D), with D = 2·TP + FP + FN, so that
    the variance of the mean is that of this ratio (delta method). F1 is 0 where D is. Samples without a score are
    left out.
    """
    known_PN = ~np.isnan(correct_PN)
    chosen_PN = np.array([[str(text).strip() == positive for text in texts] for texts in text_PN]) & known_PN
    right_PN = correct_PN == 1
    # `positive` is wrong for a problem if a sample was wrong to choose it, or right not to.
    wanted_P = ~((chosen_PN & ~right_PN) | (known_PN & ~chosen_PN & right_PN)).any(1)
    true_P = (chosen_PN & wanted_P[:, None]).sum(1)
    total_P = chosen_PN.sum(1) + np.where(wanted_P, known_PN.sum(1), 0)
    if not total_P.sum():
        return np.zeros(len(total_P))
    value = 2 * true_P.sum() / total_P.sum()
    return value + (2 * true_P - value * total_P) / total_P.mean()


def answer_logprob(answer_logprob_P: np.ndarray) -> np.ndarray:
    """Mean log-probability (nats) per token of the problem's answer under the model; exp(−x) is its perplexity.

    Nothing is sampled for it. NaN for problems without an answer.
    """
    return answer_logprob_P


def lm_eval(reported: Mapping[str, np.ndarray], *, name: str) -> np.ndarray:
    """A metric of lm-eval by its name, as `acc_norm`, or with a filter, as `exact_match,strict-match`.

    NaN for problems whose task does not have it.
    """
    if name not in reported:
        raise StepError(f"metric lm_eval: no task reports `{name}`; they report {', '.join(reported) or 'nothing'}")
    return reported[name]


def _answers(texts: Sequence[str], marker: str | None, ignore_case: bool) -> list[str | None]:
    """Final answers in the form in which they are compared; None where there is none."""
    final_answers = [extract_final_answer(text, marker) for text in texts]
    return [str(normalise_answer(text, ignore_case)) if text and text.strip() else None for text in final_answers]
