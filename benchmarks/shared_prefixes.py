"""Time of an update over branches of episodes: prefixes computed once, compared with every branch computed whole.

    python benchmarks/shared_prefixes.py [--rounds 5] [--threads 2] [--turns 8] [--turn 47]

16 groups of 4 branches of 8 turns, 24 sampled and 23 observed tokens each, after a prompt of 64 tokens of each group.
`late` branches leave their trunk after turn 6, `middle` ones after turn 4; `none` have only the prompt in common, which
is computed once on both sides. The model is that of grpo_step.py. Forward and backward passes over all tokens' log-
probabilities take turns in one process; one JSON line per shape gives CPU seconds of both, the ratio whole / shared,
the share of tokens that are distinct, and the largest difference of a gradient, relative to the largest gradient.
"""

import argparse
import json
import statistics
from functools import partial
from typing import Any

import torch
from grpo_sides import VOCABULARY
from timing import now
from transformers import AutoModelForCausalLM, Qwen2Config

from learning.models.packed import Packed, pack, packed_statistics
from learning.models.shared_prefixes import merge_prefixes, shared_statistics

GROUPS, BRANCHES, PROMPT = 16, 4, 64


def make_model() -> Any:
    """The model of grpo_step.py with random weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 6}
    config = Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=6, max_position_embeddings=2048, **sizes)
    return AutoModelForCausalLM.from_config(config)


def make_forest(turns: int, turn: int, trunk: int) -> Packed:
    """Groups of branches of `turns` turns that have the first `trunk` turns in common."""
    generator = torch.Generator().manual_seed(1)

    def draw(count: int) -> list[int]:
        return torch.randint(VOCABULARY, (count,), generator=generator).tolist()

    segments, parents = [], []
    for _ in range(GROUPS):
        parent = len(segments)
        segments.append(draw(PROMPT))
        parents.append(-1)
        common = draw(trunk * turn)
        for _ in range(BRANCHES):
            segments.append(common + draw((turns - trunk) * turn))
            parents.append(parent)
    return pack(segments, parents)


def measure(model: Any, packed: Packed, rounds: int) -> dict[str, Any]:
    """CPU seconds of both updates, and how their gradients differ."""
    learn_M = packed.position_ids_M >= PROMPT
    sides = {"shared": shared_statistics, "whole": packed_statistics}
    taken: dict[str, list[float]] = {name: [] for name in sides}
    gradients: dict[str, list[torch.Tensor]] = {}
    weight_M = torch.linspace(-1, 1, len(packed.input_ids_M))
    for number in range(rounds + 1):
        for name, compute in sides.items():
            model.zero_grad()
            began = now()
            (compute(model, packed, needed_M=learn_M)["lp"] * weight_M).sum().backward()
            if number:
                taken[name].append(now()[1] - began[1])
            gradients[name] = [p.grad.clone() for p in model.parameters()]
    largest = max(float(grad.abs().max()) for grad in gradients["whole"])
    pairs = zip(*gradients.values(), strict=True)
    return {
        "cpu_seconds": {name: round(statistics.median(values), 3) for name, values in taken.items()},
        "ratio": round(statistics.median(taken["whole"]) / statistics.median(taken["shared"]), 2),
        "difference": max(float((a - b).abs().max()) for a, b in pairs) / largest,
    }


def main() -> None:
    """Print one JSON line per shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = partial(parser.add_argument, type=int)
    add("--rounds", default=5)
    add("--threads", default=2)
    add("--turns", default=8)
    add("--turn", default=47)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = make_model()
    for name, trunk in (("late", options.turns * 3 // 4), ("middle", options.turns // 2), ("none", 0)):
        packed = make_forest(options.turns, options.turn, trunk)
        distinct = merge_prefixes(packed)
        share = 1.0 if distinct is None else len(distinct.packed.input_ids_M) / len(packed.input_ids_M)
        more = {"tokens": len(packed.input_ids_M), "distinct": round(share, 3)}
        print(
            json.dumps(
                {"benchmark": "shared_prefixes", "branches": name, **more, **measure(model, packed, options.rounds)}
            )
        )


if __name__ == "__main__":
    main()
