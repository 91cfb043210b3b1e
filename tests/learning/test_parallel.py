"""One rank and two ranks take the same step."""

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

STEP = """
import sys

import torch
from safetensors.torch import save_file
from torch import distributed
from transformers import AutoModelForCausalLM, Qwen3Config

from learning.algorithm import bind_algorithm
from learning.engines.protocol import Generation
from learning.forest import single_turn
from learning.policy_loss import with_advantages, with_dropped
from learning.update import update
from schemas.stages.rl import Rl

folder, rank, world, mini = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
if world > 1:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet-{mini}", rank=rank, world_size=world)
torch.manual_seed(0)
shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
config = Qwen3Config(vocab_size=31, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, **shape)
model = AutoModelForCausalLM.from_config(config)
generator = torch.Generator().manual_seed(1)
ids = lambda n: torch.randint(1, 31, (n,), generator=generator).tolist()
groups = [[Generation(ids(n), [-3.0] * n, "stop") for n in sizes] for sizes in ((3, 9, 1), (5, 2, 2, 17), (4, 4))]
batch = single_turn([ids(4), ids(11), ids(3)], groups)
batch = batch.with_paths(reward=torch.rand(batch.num_paths, generator=generator, dtype=torch.float64))
stage = Rl.model_validate({
    "kind": "rl", "model": "m", "prompts": "p", "rewards": ["answers.exact"], "max_steps": 1, "max_grad_norm": None,
    "advantage": ["center"], "ratio": "token", "surrogate": "clipped", "weigh": "sequence_mean",
    "components": [{"use": "entropy", "coef": 0.1}], "max_tokens_per_micro_batch": 20, "num_mini_batches": mini,
})
algorithm = bind_algorithm(stage, {})
batch = with_advantages(algorithm, with_dropped(batch, False), 0)
before = {name: p.detach().clone() for name, p in model.named_parameters()}
update(algorithm, model, torch.optim.SGD(model.parameters(), lr=1.0), batch, stage, 0)
moved = {name: before[name] - p.detach() for name, p in model.named_parameters()}
save_file(moved, f"{folder}/of-{rank}-of-{world}-{mini}.safetensors")
"""
HOUSE = Path(__file__).resolve().parents[2]


def steps(folder, world, mini):
    """What a step of SGD with rate 1 moves on each rank: with one mini-batch, the gradient."""
    started = [
        subprocess.Popen([sys.executable, "-c", STEP, str(folder), str(rank), str(world), str(mini)], cwd=HOUSE)
        for rank in range(world)
    ]
    assert [process.wait(120) for process in started] == [0] * world
    return [load_file(folder / f"of-{rank}-of-{world}-{mini}.safetensors") for rank in range(world)]


def test_trap_01_one_rank_and_two_ranks_have_the_same_gradient(tmp_path):
    (alone,) = steps(tmp_path, 1, 1)
    first, second = steps(tmp_path, 2, 1)
    assert max(float(g.abs().max()) for g in alone.values()) > 1e-3
    for name, gradient in alone.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], gradient, atol=1e-6, rtol=0)


def test_more_ranks_than_parts_and_several_steps_agree(tmp_path):
    (alone,) = steps(tmp_path, 1, 3)
    both = steps(tmp_path, 2, 3)
    for name, change in alone.items():
        torch.testing.assert_close(both[0][name], change, atol=1e-5, rtol=0)
        assert torch.equal(both[0][name], both[1][name])
