"""kind: evaluate_rewards — reward models on the same pairs: a table with intervals, paired differences, gates."""

from collections.abc import Sequence

import numpy as np
import torch

from learning.data.rows import Row, read_rows
from learning.evaluation.evaluation import ALL, Comparison, Scores, make_comparisons, make_table
from learning.evaluation.evaluation_report import write_report
from learning.evaluation.gate_statistics import check_gates, judge_gates
from learning.models.policy import set_determinism
from learning.models.reward_model import RewardModel, load_reward_model
from learning.preference.batches import SIDES, Pair, encode_pair, group_by_tokens
from learning.preference.reward_modelling import measure_calibration, measure_length_bias, score_correct
from schemas.errors import StepError
from schemas.stages.evaluate_rewards import EvaluateRewards
from tasks.context import Context, Result
from tasks.training_rows import describe_trained_problems

TOKENS = 16_384
"""Tokens per forward pass."""


def run(stage: EvaluateRewards, context: Context) -> Result:
    """Score both completions of every pair with every model, and report; `flows` acts on the gates."""
    set_determinism(context.seed, context.num_threads)
    names, rows = list(stage.models), read_pairs(stage, context)
    compared = Comparison(stage.models, stage.metrics, stage.confidence, stage.num_bootstrap, stage.gate, threshold=1.0)
    families = [row["family"] or None for row in rows]
    check_gates(compared, names, [family for family in families if family])
    scores: dict[str, np.ndarray] = {}
    metrics: dict[str, float | int] = {"pairs": len(rows)}
    samples: list[Row] = []
    notices: list[str] = []
    for done, name in enumerate(names):
        judge = load_reward_model(context.input(f"models.{name}"), device=context.device, dtype=stage.dtype)
        limit = min(stage.max_length or judge.policy.max_length, judge.policy.max_length)
        encoded = [encode_pair(judge.policy.tokenizer, row, limit)[0] for row in rows]
        reward_P2 = compute_rewards(name, judge, encoded)
        scores[name] = score_correct(reward_P2[:, 0] - reward_P2[:, 1])[:, None]
        metrics |= describe_quality(name, reward_P2, encoded)
        samples += make_sample_rows(name, rows, reward_P2)
        too_long = encoded.count(None)
        if too_long:
            notices.append(f"{name}: {too_long} of {len(rows)} pairs have more than {limit} tokens and are not counted")
        context.progress(done + 1, len(names))
    measured = Scores(scores, families, first=names[0])
    results: Row = {
        "confidence": stage.confidence,
        "problems": len(rows),
        "table": make_table(compared, measured, context.seed),
        "comparisons": make_comparisons(compared, measured, context.seed),
        "gates": judge_gates(compared, measured, context.seed),
    }
    write_report(context.output("report"), results, samples)
    for line in results["table"]:
        name = f"{line['metric']}.{line['model']}"
        metrics[name if line["family"] == ALL else f"{name}.{line['family']}"] = line["value"]
        if line["family"] == ALL and line["model"] == names[-1]:
            metrics[line["metric"]] = line["value"]
    metrics["gates_failed"] = sum(not gate["passed"] for gate in results["gates"])
    return Result(metrics, results, [*notices, *describe_trained_problems(rows, context)])


def read_pairs(stage: EvaluateRewards, context: Context) -> list[Row]:
    """Return the pairs. Raise StepError if there are none, or rows with one completion only."""
    rows = read_rows(context.input("data"), "preference_pairs")[: stage.limit]
    if not rows:
        raise StepError("evaluate_rewards: there are no pairs to evaluate on")
    if single := [row["id"] for row in rows if not row["chosen"] or not row["rejected"]]:
        raise StepError(
            f"evaluate_rewards: {len(single)} of {len(rows)} rows have one completion with a label, first "
            f"{single[0]!r}; it needs pairs"
        )
    return rows


def compute_rewards(name: str, judge: RewardModel, pairs: Sequence[Pair | None]) -> np.ndarray:
    """Return the rewards (P, 2) of the chosen and the rejected completions, NaN where there is no pair."""
    reward_P2 = np.full((len(pairs), 2), np.nan)
    places = [place for place, pair in enumerate(pairs) if pair is not None]
    if not places:
        raise StepError(f"evaluate_rewards: none of {len(pairs)} pairs fits into the {name}'s length; raise max_length")
    computed: list[torch.Tensor] = []
    with torch.no_grad():
        for group in group_by_tokens([pair for pair in pairs if pair is not None], TOKENS):
            rewards = judge.rewards([p.prompt for p in group], [[p.chosen, p.rejected] for p in group])
            computed.append(rewards.view(-1, 2).cpu().double())
    reward_P2[places] = torch.cat(computed).numpy()
    if not np.isfinite(reward_P2[places]).all():
        raise StepError(f"evaluate_rewards: rewards of {name} are not finite; is its precision too low?")
    return reward_P2


def describe_quality(name: str, reward_P2: np.ndarray, pairs: Sequence[Pair | None]) -> dict[str, float | int]:
    """Return mean margin, correlation with length and calibration of a model, on the pairs that fit."""
    counted = [(p, pair) for p, pair in enumerate(pairs) if pair is not None]
    reward_P2 = reward_P2[[p for p, _ in counted]]
    tokens_P2 = np.array([[len(pair.chosen), len(pair.rejected)] for _, pair in counted])
    correlation = measure_length_bias(*reward_P2.T, *tokens_P2.T)["correlation"]
    delta_P = reward_P2[:, 0] - reward_P2[:, 1]
    metrics: dict[str, float | int] = {
        f"margin.{name}": float(delta_P.mean()),
        f"expected_calibration_error.{name}": measure_calibration(delta_P)["expected_calibration_error"],
        f"dropped.too_long.{name}": len(pairs) - len(counted),
    }
    return metrics if correlation is None else metrics | {f"length_correlation.{name}": correlation}


def make_sample_rows(name: str, rows: Sequence[Row], reward_P2: np.ndarray) -> list[Row]:
    """Return two rows per pair: sample 0 is the chosen completion, sample 1 the rejected one, with their rewards."""
    return [
        {
            "model": name,
            "id": row["id"],
            "family": row["family"],
            "sample": side,
            "prompt": row["prompt"][-1]["content"] if row["prompt"] else "",
            "answer": row["answer"],
            "completion": "\n".join(str(message["content"]) for message in row[SIDES[side]]),
            "truncated": False,
            "score": None if np.isnan(reward_P2[p, side]) else float(reward_P2[p, side]),
        }
        for p, row in enumerate(rows)
        for side in range(len(SIDES))
    ]
