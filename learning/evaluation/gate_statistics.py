"""Gates of an evaluation: from the scores of models on the same problems to what holds and what does not.

Every bound that a gate names must hold. With c its confidence and tail = (1 − c) / 2: `min_delta` holds wrongly with
probability tail at most; of the k budgets of `max_regression` each is tested at tail / k, so that a gate fails wrongly
with probability tail at most however many there are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from learning.evaluation.evaluation import ALL, Compared, Scores, compute_values, make_metric_name
from learning.evaluation.gate_questions import Question, list_questions
from learning.evaluation.paired_tests import (
    compute_bootstrap_bounds,
    compute_mcnemar_p,
    estimate_noise_floor,
    find_minimum_detectable,
)
from schemas.errors import StepError
from schemas.gates import Gate, list_regressions, split_metric

Outcome = dict[str, Any]
CHAMPION = "champion"


@dataclass(frozen=True)
class Pair:
    """The two models of a gate, by name."""

    new: str
    old: str


def check_gates(stage: Compared, models: Sequence[str], families: Iterable[str]) -> None:
    """Refuse, before anything is sampled, gates over what is not there. Raises StepError."""
    metrics = [make_metric_name(use) for use in stage.metrics]
    if len(set(metrics)) < len(metrics):
        raise StepError(f"metrics: two of the same name among {', '.join(metrics)}")
    known_families = sorted(set(families))
    for gate in stage.gate:
        refuse_unknown("gate: model", gate.model or models[-1], models)
        if gate.against is not None and gate.against != CHAMPION:
            refuse_unknown("gate: against", gate.against, [*models, *stage.against])
        for name in (gate.metric, *list_regressions(gate)):
            parts = split_metric(name, metrics)
            if parts is None:
                refuse_unknown("gate: metric", name, metrics)
            elif parts[1] is not None:
                refuse_unknown(f"gate: family of {parts[0]}", parts[1], known_families)


def refuse_unknown(what: str, name: str, names: Iterable[str]) -> None:
    """Raise StepError with the nearest of `names` when `name` is none of them."""
    names = list(names)
    if name not in names:
        near = get_close_matches(name, names, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(names)}"
        raise StepError(f"{what}: {name!r} is not in this stage; {advice}")


def judge_gates(stage: Compared, scores: Scores, seed: int) -> list[Outcome]:
    """Return what every gate says: passed, text, and each of its tests. Raises StepError where a test does not fit."""
    last = (list(stage.models) or ["model"])[-1]
    rounds = [compute_values(stage, one) for one in (scores, *scores.again())]
    return [_outcome(stage, gate, gate.model or last, scores, rounds, seed) for gate in stage.gate]


def _outcome(stage: Compared, gate: Gate, model: str, scores: Scores, rounds: list[dict], seed: int) -> Outcome:
    texts, tests, passed = [], [], True
    for bound, sign, compare in ((gate.min, ">=", np.greater_equal), (gate.max, "<=", np.less_equal)):
        if bound is not None:
            value = float(np.nanmean(_of(stage, scores, rounds[0], gate.metric, model)))
            passed &= bool(compare(value, bound))
            texts.append(f"{gate.metric} of {model} {value:.4f}, wanted {sign} {bound:g}")
    if gate.against is not None and gate.against not in scores.models:
        texts.append("there is no champion yet: nothing to compare with")
    elif gate.against is not None:
        pair = Pair(model, gate.against)
        tests = [_tested(stage, gate, pair, q, scores, rounds, seed) for q in list_questions(gate, stage.confidence)]
        passed &= all(test["passed"] for test in tests)
        texts += [_text(pair, test) for test in tests]
    outcome = {"metric": gate.metric, "model": model, "against": gate.against, "test": gate.test}
    return outcome | {"passed": bool(passed), "text": "; ".join(texts), "tests": tests}


def _of(stage: Compared, scores: Scores, measured: dict, name: str, model: str) -> np.ndarray:
    """Return the values of a metric, or of one family of it, on the problems: (P,)."""
    metric, family = split_metric(name, [make_metric_name(use) for use in stage.metrics]) or (name, None)
    return np.asarray(measured[metric][model][scores.subsets()[family or ALL]])


def _tested(
    stage: Compared, gate: Gate, pair: Pair, question: Question, scores: Scores, rounds: list[dict], seed: int
) -> Outcome:
    new_P, old_P = (_of(stage, scores, rounds[0], question.name, model) for model in (pair.new, pair.old))
    both_P = ~np.isnan(new_P) & ~np.isnan(old_P)
    gain_P = new_P[both_P] - old_P[both_P]
    if len(gain_P) == 0:
        raise StepError(f"gate: no problem has a value of {question.name} for both {pair.new} and {pair.old}")
    value, spread = float(gain_P.mean()), float(np.sqrt((gain_P**2).mean()))
    again = rounds[: gate.noise_repeats + 1]
    new_R, old_R = ([np.nanmean(_of(stage, scores, r, question.name, m)) for r in again] for m in (pair.new, pair.old))
    floor = estimate_noise_floor(np.subtract(new_R, old_R), question.tail) if gate.noise_repeats else 0.0
    outcome: Outcome = {
        "kind": question.kind,
        "name": question.name,
        "bound": question.bound,
        "tail": question.tail,
        "value": value,
        "n": len(gain_P),
        "spread": spread,
        "floor": floor,
    }
    outcome["detectable"] = find_minimum_detectable(
        len(gain_P), question.tail, spread=spread, test=gate.test, floor=floor
    )
    if gate.test == "mcnemar":
        outcome |= _mcnemar(question, np.concatenate([new_P[both_P], old_P[both_P]]), gain_P)
        proven = outcome["p_value"] <= question.tail
    else:
        low, high = compute_bootstrap_bounds(gain_P, question.tail, num_bootstrap=stage.num_bootstrap, seed=seed)
        proven = low >= question.bound if question.kind == "min_delta" else high < question.bound
        outcome |= {"low": low if np.isfinite(low) else None, "high": high if np.isfinite(high) else None}
    if question.kind == "min_delta":
        return outcome | {"passed": bool(proven and (question.bound < 0 or value >= floor))}
    return outcome | {"passed": not (proven and -value > floor)}


def _mcnemar(question: Question, values_P: np.ndarray, gain_P: np.ndarray) -> Outcome:
    if not np.isin(values_P, (0.0, 1.0)).all():
        raise StepError(
            f"gate: McNemar's test wants 0 or 1 for each problem, and {question.name} has other values; "
            "write `test: paired_bootstrap`"
        )
    wins, losses = int((gain_P > 0).sum()), int((gain_P < 0).sum())
    ordered = (wins, losses) if question.kind == "min_delta" else (losses, wins)
    return {"wins": wins, "losses": losses, "p_value": compute_mcnemar_p(*ordered)}


def _text(pair: Pair, test: Outcome) -> str:
    text = f"{test['name']} of {pair.new} − {pair.old}: {test['value']:+.4f}"
    if "p_value" in test:
        what = "an improvement" if test["kind"] == "min_delta" else "a regression"
        sign = "<=" if test["kind"] == "min_delta" else ">"
        text += f" ({test['wins']} won, {test['losses']} lost), p of {what} {test['p_value']:.3g}, "
        text += f"wanted {sign} {test['tail']:.3g}"
    elif test["low"] is None:
        text += ", a single problem proves nothing"
    else:
        end = "lower" if test["kind"] == "min_delta" else "upper"
        text += f" [{test['low']:+.4f}, {test['high']:+.4f}], wanted the {end} bound >= {test['bound'] + 0.0:g}"
    if test["floor"]:
        text += f", noise floor {test['floor']:.4f}"
    return text if test["detectable"] is None else f"{text}, detectable {test['detectable']:.4f}"
