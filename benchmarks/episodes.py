"""Episodes that continue independently compared with synchronised batches, with tools that answer late.

    python benchmarks/episodes.py [--quick] [--seeds 5] [--episodes 64] [--turns 4] [--scale 0.02]

Every episode calls a tool in each of its turns and then answers. A call takes X seconds, with X from a Pareto
distribution of shape 1.5 with minimum 1 (virtual clock) or `--scale` (real time), cut at 60 times that. The model's
text is prescribed, so that both orders sample the same tokens from the same engine; calls run concurrently in both.
`each`: an episode continues as soon as its own call has ended (`env: {order: each}`); `together`: all wait for the
slowest call of the turn.

On the virtual clock, a discrete-event simulation around the real engine, a decode step takes `--decode` seconds and
nothing really waits. In real time calls sleep and decode steps take their own time. Orders take turns within a seed.

Prints one line of JSON: seconds from the first token to the last answer in both orders, and their ratio, mean and
lowest.
"""

import argparse
import hashlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

SHAPE, CUT = 1.5, 60.0
ORDERS = ("together", "each")


def latency(seed: int, problem: str, turn: int) -> float:
    """Seconds that a call takes, in units of the least: the same in both orders."""
    digest = hashlib.sha256(f"{seed} {problem} {turn}".encode()).digest()
    uniform = (int.from_bytes(digest[:8], "big") + 0.5) / 2**64
    return min(uniform ** (-1 / SHAPE), CUT)


def waits(query: str, row: dict[str, Any], *, seed: int, scale: float) -> str:
    """A tool that takes its time, and says how long that is in thousandths of the least: always in five digits."""
    units = latency(seed, row["id"], int(query))
    time.sleep(units * scale)
    return f"{1000 * units:05.0f}"


def policy_of(seed: int) -> Any:
    """A small model with random weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from learning.data.tokenizers import characters
    from learning.models.policy import Policy, set_determinism

    set_determinism(seed, 1)
    tokenizer = characters()
    tokenizer.model_max_length = 256
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=2, head_dim=16, **shape, **special)
    with torch.no_grad():
        return Policy(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval(), tokenizer, 256)


def dictated(tokenizer: Any, turns: list[str]) -> Any:
    """A processor under which every completion says these turns, with a reply of five characters after each call."""
    import torch

    from learning.data.chat import encode_completion, encode_reply

    says: list[int | None] = []
    for turn in turns:
        says += encode_completion(tokenizer, [{"role": "assistant", "content": turn}])
        says += [None] * len(encode_reply(tokenizer, "00000"))

    def process(logits_BV: Any, place_B: Any) -> Any:
        at = torch.tensor([says[place] for place in place_B.tolist()])
        return torch.full_like(logits_BV, -torch.inf).scatter(1, at[:, None], 0.0)

    return process


def one(order: str, seed: int, policy: Any, options: argparse.Namespace, virtual: bool) -> tuple[float, Any]:
    """Seconds that the episodes take, and their tokens."""
    from learning.data.chat import encode_prompt
    from learning.environments.clock import ThreadClock, VirtualClock
    from learning.environments.episodes import Episodes
    from learning.environments.lookup_environment import build_environment
    from learning.generation.engines.torch import Engine
    from learning.samples.engine_protocol import Request, Sampling
    from schemas.use import EnvUse

    tool = {"use": "episodes:waits", "seed": seed, "scale": 0.0 if virtual else options.scale}
    environment = build_environment(EnvUse.model_validate({"use": "tools", "tools": [tool]}), {})
    simulated = VirtualClock(lambda outcome: float(outcome.observation or 0) / 1000, decode_s=options.decode)
    clock = simulated if virtual else ThreadClock(options.episodes)
    engine = Engine(policy, max_slots=options.episodes)
    how = {"max_turns": options.turns + 1, "order": order, "clock": clock}
    episodes = Episodes(engine, environment, tokenizer=policy.tokenizer, **how)
    rows = [{"id": str(i), "prompt": [{"role": "user", "content": str(i)}]} for i in range(options.episodes)]
    asked = [Request(encode_prompt(policy.tokenizer, row["prompt"]), 1, i, row=row) for i, row in enumerate(rows)]
    turns = [*(f"waits: {turn}" for turn in range(options.turns)), "done"]
    began = clock.now
    made = episodes.generate(asked, Sampling(1.0, 200, processor=dictated(policy.tokenizer, turns)))
    seconds = clock.now - began
    episodes.close()
    assert {len(g.turns) for of in made for g in of} == {options.turns + 1}
    return seconds, [g.token_ids for of in made for g in of]


def compared(options: argparse.Namespace, virtual: bool) -> dict[str, Any]:
    """Both orders over the seeds."""
    taken: dict[str, list[float]] = {order: [] for order in ORDERS}
    for seed in range(options.seeds):
        policy, tokens = policy_of(seed), []
        for order in ORDERS:
            seconds, ids = one(order, seed, policy, options, virtual)
            taken[order].append(seconds)
            tokens.append(ids)
        assert tokens[0] == tokens[1]
        durations = ", ".join(f"{order} {taken[order][-1]:.2f} s" for order in ORDERS)
        print(f"{'virtual' if virtual else 'real'}, seed {seed}: {durations}", file=sys.stderr)
    ratios = [slow / fast for slow, fast in zip(*(taken[order] for order in ORDERS), strict=True)]
    return {
        "seconds": {order: [round(s, 3) for s in durations_of_order] for order, durations_of_order in taken.items()},
        "ratio": round(statistics.fmean(ratios), 2),
        "ratio_lowest": round(min(ratios), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed of eight episodes: a smoke test")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=64, help="under way at the same time")
    parser.add_argument("--turns", type=int, default=4, help="calls of an episode")
    parser.add_argument("--decode", type=float, default=0.02, help="seconds of a decode step on the virtual clock")
    parser.add_argument("--scale", type=float, default=0.02, help="seconds of the shortest call in real time")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.episodes, options.scale = 1, 8, 0.005
    sizes = {key: getattr(options, key) for key in ("seeds", "episodes", "turns")}
    shape = {"shape": SHAPE, "cut": CUT, "decode_seconds": options.decode, "real_from_seconds": options.scale}
    comparisons = {name: compared(options, name == "virtual") for name in ("virtual", "real")}
    print(json.dumps({"benchmark": "episodes", "latency_pareto": shape, **sizes, **comparisons}))


if __name__ == "__main__":
    main()
