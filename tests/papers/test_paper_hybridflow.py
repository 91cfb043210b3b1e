"""HybridFlow: the placement of the models of PPO does not change its first losses and gradients.

Shares of 5 over 2 workers come back in order, without what filled them up; after a step by two holders of half the
parameters each, those that sample have the trainer's checksums.

Not shown: resharding on GPUs without a second copy of the weights, throughput.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from flows.planning.compile import compile_recipe
from learning.data.rows import write_rows
from learning.models.checksum import compute_checksum
from learning.models.reward_model import make_reward_model
from learning.parallel.actors import Threads
from learning.parallel.group import ALONE, Group, gather_shards
from learning.parallel.pool import Pool
from learning.sampling.placed_rewards import Placed, Scorer
from lineage.layout import Layout
from schemas.recipe.load import load_recipe
from schemas.training import LoRA
from tasks import rl
from tasks.context import Context

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "papers" / "hybridflow.yaml"
WORDS = ("ab", "c", "de", "fgh", "i", "jk")
TOLD = ("reward", "kl", "kl_to_sampler", "entropy", "loss/kl", "grad_norm", "value_loss")


def stage():
    """The recipe's PPO, in small: one iteration, whose gradient is what the test is about."""
    settings = load_recipe(RECIPE, profile="tiny").stages["trained"]
    critic = settings.critic.model_copy(update={"warmup_steps": 0})
    small = {"generation_batch_size": 12, "max_completion_length": 8, "max_steps": 1, "max_tokens_per_micro_batch": 40}
    return settings.model_copy(update={**small, "critic": critic, "rewards": settings.rewards})


def go(folder, out, group, actors=None):
    """One iteration in a placement: its losses, the gradient of the policy, and digests of trainer and sampler."""
    from learning.rl import update

    settings, seen = stage(), {}
    ports = {"model": folder / "policy", "prompts": folder / "prompts", "rewards.0.model": folder / "judge"}
    made = Context(ports, out, out / "checkpoints", 3, group=group, actors=actors)
    clip = update.clip_gradients

    def noting(model, limit):
        named = [(name, gather_shards(p.grad)) for name, p in model.named_parameters() if p.grad is not None]
        seen.update({name: grad.clone().contiguous() for name, grad in named})
        return clip(model, limit)

    update.clip_gradients = noting
    try:
        loop = rl.prepare(settings, made)
        rl.run_iteration(loop, 0)
        trainer = {
            name: compute_checksum(gather_shards(p.detach())) for name, p in loop.policy.model.named_parameters()
        }
        sampler = {name: compute_checksum(p.detach()) for name, p in loop.acting.model.named_parameters()}
        last = {name: loop.curves.last[name] for name in TOLD if name in loop.curves.last}
        loop.close()
    finally:
        update.clip_gradients = clip
    if group.main:
        save_file(seen, out / "gradient.safetensors")
        equal = trainer == sampler
        (out / "told.json").write_text(json.dumps({"points": last, "equal": equal, "tensors": len(trainer)}))


RANK = """
import os, sys
from pathlib import Path
import torch
from torch import distributed
from learning.parallel.group import Group
from tests.papers.test_paper_hybridflow import go, shared

folder, out, rank, strategy = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
distributed.init_process_group("gloo", f"file://{out}/meeting", rank=rank, world_size=2)
torch.set_num_threads(1)
group = Group(rank, 2, strategy)
go(folder, out, group)
shared(out, group)
distributed.destroy_process_group()
"""


def shared(out, group):
    """A batch of 5 over the group: what each rank did, and what came back."""
    did = []

    def one(part):
        did.append(part)
        return part * part

    back = group.each([3, 1, 4, 1, 5], one)
    (out / f"shared-{group.rank}.json").write_text(json.dumps([did, back]))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A policy, a Bradley-Terry judge and problems, as folders."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    from learning.data.tokenizers import characters
    from learning.models.policy import Policy, save_policy, set_determinism

    folder = tmp_path_factory.mktemp("inputs")
    set_determinism(0, 1)
    tokenizer = characters()
    tokenizer.model_max_length = 64
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "tie_word_embeddings": True}
    shape |= {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    config = Qwen3Config(vocab_size=len(tokenizer), **shape)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)
    policy = Policy(model, tokenizer, 64)
    save_policy(policy, folder / "policy")
    make_reward_model(policy, 64).save(folder / "judge", LoRA())
    more = {"answer": None, "family": "f", "metadata": "{}"}
    rows = [{"id": word, "prompt": [{"role": "user", "content": word}], **more} for word in WORDS]
    (folder / "prompts").mkdir()
    write_rows(folder / "prompts", "prompts", rows)
    return folder


def told(out):
    return json.loads((out / "told.json").read_text()), load_file(out / "gradient.safetensors")


@pytest.fixture(scope="module")
def colocated(inputs, tmp_path_factory):
    out = tmp_path_factory.mktemp("colocated")
    go(inputs, out, ALONE)
    return told(out)


def same(ours, theirs):
    (said, gradient), (wanted, want) = ours, theirs
    assert set(said["points"]) == set(wanted["points"]) >= {"reward", "kl", "grad_norm", "entropy"}
    for name, value in wanted["points"].items():
        assert said["points"][name] == pytest.approx(value, abs=1e-5), name
    assert max(float(g.abs().max()) for g in want.values()) > 1e-3
    for name, value in want.items():
        torch.testing.assert_close(gradient[name], value, atol=1e-5, rtol=0)


def test_models_with_processes_of_their_own_give_the_same_losses_and_gradients(inputs, colocated, tmp_path):
    actors = Threads({"rollout": 1, "reward": 2, "reference": 1})
    go(inputs, tmp_path, ALONE, actors)
    same(told(tmp_path), colocated)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_trainers_give_them_too_and_samplers_get_their_weights(inputs, colocated, tmp_path, strategy):
    started = [
        subprocess.Popen([sys.executable, "-c", RANK, str(inputs), str(tmp_path), str(rank), strategy], cwd=ROOT)
        for rank in range(2)
    ]
    assert [process.wait(500) for process in started] == [0, 0]
    same(told(tmp_path), colocated)
    assert told(tmp_path)[0]["equal"]
    (first, back), (second, other) = (json.loads((tmp_path / f"shared-{rank}.json").read_text()) for rank in range(2))
    # Six calls for five parts: the rank that has one part fewer repeats the first, and it does not come back.
    assert (first, second) == ([3, 4, 5], [1, 1, 3])
    assert back == other == [9, 1, 16, 1, 25]


def test_a_batch_of_five_over_two_workers_is_filled_up_and_comes_back_in_order():
    ranks = [Group(rank, 2) for rank in range(2)]
    rounds = [group.rounds("abcde") for group in ranks]
    assert rounds == [[("a", True), ("c", True), ("e", True)], [("b", True), ("d", True), ("a", False)]]
    by_rank = [[part.upper() for part, real in mine if real] for mine in rounds]

    class Both(Group):
        def gather(self, value):
            return by_rank

    assert Both(0, 2).together(by_rank[0]) == list("ABCDE")


def lengths(rows, completions):
    """A reward that scores each completion for itself."""
    SIZES.append(len(completions))
    return [float(len(text)) for text in completions]


SIZES: list[int] = []


def test_five_completions_are_judged_by_two_workers_and_scores_stay_in_place():
    from learning.lookup import bind
    from schemas.use import RewardUse

    SIZES.clear()
    pool = Pool(Threads({"reward": 2}), "reward", Scorer)
    judge = Placed(bind(RewardUse(use=f"{__name__}:lengths")), pool, each=True)
    texts = ["a" * n for n in (5, 3, 9, 1, 7)]
    assert judge.answered(0, {"rows": [{}] * 5, "completions": texts}).scores == [5.0, 3.0, 9.0, 1.0, 7.0]
    assert sorted(SIZES) == [2, 3]
    pool.close()


def test_the_placement_is_no_part_of_what_a_step_is(tmp_path):
    plans = {
        name: compile_recipe(load_recipe(RECIPE, profile=name), Layout(tmp_path)) for name in ("tiny", "split", "dp2")
    }
    steps = {name: plan.step("trained") for name, plan in plans.items()}
    assert len({step.key for step in steps.values()}) == 1
    assert {name: sorted(role for role, _ in step.resources.roles()) for name, step in steps.items()} == {
        "tiny": [],
        "split": ["reference", "reward", "rollout"],
        "dp2": ["train"],
    }
