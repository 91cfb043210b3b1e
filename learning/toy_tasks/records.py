"""Synthetic health records of eight measurements at four visits, two of which decide the label; and an expert model.

The expert is a small attention network over the table of a record, fitted once on separate records. Its attention on
each measurement is stored in the metadata of a problem, together with the text that shows the measurement.

Shapes: N records, F measurements, V visits.
"""

import json
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split

NAMES = "abcdefgh"
VISITS = 4
MIDDLE = 4.5 * VISITS
"""Sum of a measurement in the middle of the scale."""
LABELS = ("low", "high")
FITTED_ON = 600
FITTING_STEPS = 250


def records(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    world: int = 0,
    shuffled: bool = False,
) -> list[Row]:
    """Generate `size` distinct health records with the question whether a risk is `high` or `low`, half of each.

    `a:1234 b:5678 … risk?` shows the visits of every measurement, with `shuffled` in random order (and as the family
    `records_shuffled`). `world` selects the two measurements that decide: high if their mean is above the middle of the
    scale. `metadata` holds the expert's attention (`expert`) and each measurement's text (`spans`), sum over visits
    (`findings`) and how strongly it speaks for the answer (`support`). Raise StepError if the space is too small.
    """
    rng = np.random.default_rng([seed, 1 + world])
    expert, family = fit_expert(world), "records_shuffled" if shuffled else "records"

    def draw(_: dict[str, Row]) -> Row | None:
        table_FV, label = draw_record(rng, world)
        order = rng.permutation(len(NAMES)) if shuffled else np.arange(len(NAMES))
        name = hash_text(f"records\n{world}\n{table_FV.tolist()}")
        if not is_in_split(name, split, test_share):
            return None
        return _row(name, table_FV, label, order.tolist(), expert) | {"family": family}

    return draw_rows(draw, size, 50 * size, "records", split, "lower `size` or change `test_share`")


def find_deciding(world: int) -> tuple[int, int]:
    """Return the indices of the two measurements that decide the label."""
    first, second = np.random.default_rng([world, 7]).choice(len(NAMES), size=2, replace=False)
    return int(first), int(second)


def draw_record(rng: np.random.Generator, world: int) -> tuple[np.ndarray, int]:
    """Return a random record (F, V) of digits and its label; measurements differ in level, no record is a tie."""
    first, second = find_deciding(world)
    label = int(rng.integers(2))
    while True:
        level_F = rng.integers(0, 10, size=len(NAMES))
        table_FV = np.clip(level_F[:, None] + rng.integers(-2, 3, size=(len(NAMES), VISITS)), 0, 9)
        margin = int(table_FV[first].sum() + table_FV[second].sum()) - 9 * VISITS
        if margin and int(margin > 0) == label:
            return table_FV, label


@dataclass(frozen=True)
class Expert:
    """p(high) = σ(g·Σ_f α_f (x_f·w) + b) with α = softmax over measurements of c_f + x_f·u: attention pooling."""

    bias_F: np.ndarray
    """c: attention score of a measurement, independent of its values."""
    look_V: np.ndarray
    """u"""
    weight_V: np.ndarray
    """g·w"""
    bias: float
    """b"""

    def attention(self, x_NFV: np.ndarray) -> np.ndarray:
        """Return α (N, F) of scaled records."""
        scores_NF = self.bias_F + x_NFV @ self.look_V
        shares_NF = np.exp(scores_NF - scores_NF.max(1, keepdims=True))
        return shares_NF / shares_NF.sum(1, keepdims=True)

    def probability(self, x_NFV: np.ndarray) -> np.ndarray:
        """Return p(high) (N,) of scaled records."""
        pooled_N = (self.attention(x_NFV) * (x_NFV @ self.weight_V)).sum(1)
        return 1 / (1 + np.exp(-pooled_N - self.bias))


def scale_digits(table: np.ndarray) -> np.ndarray:
    """Return digits scaled to numbers from −1 to 1."""
    return (np.asarray(table, dtype=float) - 4.5) / 4.5


@lru_cache(maxsize=8)
def fit_expert(world: int) -> Expert:
    """Return the expert of a world, fitted by cross-entropy on separate records with Adam."""
    rng = np.random.default_rng([world, 11])
    made = [draw_record(rng, world) for _ in range(FITTED_ON)]
    x_NFV, y_N = (
        scale_digits(np.stack([table for table, _ in made])),
        np.array([label for _, label in made], dtype=float),
    )
    features = len(NAMES)
    theta = np.concatenate([np.zeros(features + VISITS), np.full(VISITS, 0.1), np.zeros(1)])
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    for step in range(1, FITTING_STEPS + 1):
        gradient = _gradient(_expert(theta), x_NFV, y_N)
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        theta = theta - 0.05 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
    return _expert(theta)


def _expert(theta: np.ndarray) -> Expert:
    bias_F, look_V, weight_V, bias = np.split(theta, np.cumsum([len(NAMES), VISITS, VISITS]))
    return Expert(bias_F, look_V, weight_V, float(bias[0]))


def _gradient(expert: Expert, x_NFV: np.ndarray, y_N: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean cross-entropy, in the order of the parameters."""
    alpha_NF, value_NF = expert.attention(x_NFV), x_NFV @ expert.weight_V
    error_N = (expert.probability(x_NFV) - y_N) / len(y_N)
    pooled_N1 = (alpha_NF * value_NF).sum(1, keepdims=True)
    score_NF = error_N[:, None] * alpha_NF * (value_NF - pooled_N1)
    look_V = np.einsum("nf,nfv->v", score_NF, x_NFV)
    weight_V = np.einsum("nf,nfv->v", error_N[:, None] * alpha_NF, x_NFV)
    return np.concatenate([score_NF.sum(0), look_V, weight_V, [error_N.sum()]])


def _row(name: str, table_FV: np.ndarray, label: int, order: list[int], expert: Expert) -> Row:
    spans = {NAMES[f]: f"{NAMES[f]}:{''.join(map(str, table_FV[f].tolist()))}" for f in order}
    attention_F = expert.attention(scale_digits(table_FV)[None])[0]
    attention = {name: round(float(share), 6) for name, share in zip(NAMES, attention_F, strict=True)}
    sums, sign = dict(zip(NAMES, table_FV.sum(1).tolist(), strict=True)), 1 if label else -1
    metadata = {
        "expert": attention,
        "spans": spans,
        "findings": {feature: str(total) for feature, total in sums.items()},
        "support": {feature: sign * (total - MIDDLE) / MIDDLE for feature, total in sums.items()},
    }
    return {
        "id": name,
        "prompt": [{"role": "user", "content": f"{' '.join(spans.values())} risk?"}],
        "answer": LABELS[label],
        "metadata": json.dumps(metadata, sort_keys=True),
    }
