"""Tasks on two ranks (gloo, both strategies) against one process: trap 1 for every kind that trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3Config

from learning.data.rows import write_rows
from learning.data.tokenizers import characters
from learning.models.policy import Policy, save_policy, set_determinism
from learning.parallel.group import ALONE, Group
from schemas.errors import StepError
from schemas.stages.rl import Rl
from tasks.context import Context
from tasks.rl import run
from tests.tasks.group_ranks import do

HERE = Path(__file__).resolve().parent
HOUSE = HERE.parents[1]
TRAINING = {"max_steps": 3, "save_steps": 1, "logging_steps": 1, "learning_rate": 1e-3, "weight_decay": 0.1}
PAIRS = {"model": "m", "data": "d", "per_device_train_batch_size": 7, "validation_fraction": 0.3}
PAIRS |= {"eval_steps": 1, "load_best_model_at_end": True}
STAGES = {
    "sft": {"model": "m", "data": "d", "per_device_train_batch_size": 3, "gradient_accumulation_steps": 3},
    "adapters": {
        "kind": "sft",
        "model": "m",
        "data": "d",
        "per_device_train_batch_size": 9,
        "use_peft": True,
        "lora_r": 2,
        "use_dora": True,
        "modules_to_save": ["norm"],
        "gradient_checkpointing": True,
        "packing": True,
    },
    "muon": {"kind": "sft", "model": "m", "data": "d", "per_device_train_batch_size": 9, "optim": "muon"},
    "lion": {"kind": "sft", "model": "m", "data": "d", "per_device_train_batch_size": 9, "optim": "lion"},
    "reward_model": PAIRS,
    "adapted_reward_model": {**PAIRS, "kind": "reward_model", "use_peft": True, "lora_r": 2},
    "preference": {
        **PAIRS,
        "max_tokens_per_micro_batch": 60,
        "loss": [{"use": "dpo", "beta": 0.2}, {"use": "nll", "weight": 0.1, "per_token": True}],
    },
    "rl": {
        "model": "m",
        "prompts": "p",
        "rewards": ["group_ranks:short"],
        "generation_batch_size": 12,
        "num_generations": 4,
        "max_completion_length": 8,
        "advantage": [{"use": "gae", "lam": 0.95, "gamma": 1.0}],
        "ratio": "token",
        "policy_loss": "clipped",
        "loss_aggregation": "sequence_mean",
        "num_mini_batches": 2,
        "max_tokens_per_micro_batch": 40,
        "loss_terms": [{"use": "kl", "coef": 0.05}],
        "critic": {"learning_rate": 1e-3},
        "log_trajectories": 1.0,
        "eval_prompts": "p",
        "eval_steps": 1,
        "load_best_model_at_end": True,
    },
}
KINDS, STRATEGIES, RESUMED = list(STAGES), ("ddp", "fsdp2"), ("sft", "rl")
PROMPTS = ("ab", "abc", "b", "cab", "ba")


def said(text):
    return [{"role": "assistant", "content": text}]


def asked(text):
    rest = {"answer": "", "family": "f", "metadata": "{}"}
    return {"id": text, "prompt": [{"role": "user", "content": text}], **rest}


def make_inputs(folder):
    """A model of two blocks with a tied head, conversations, pairs and problems, all of ragged lengths."""
    set_determinism(0, 1)
    tokenizer = characters()
    tokenizer.model_max_length = 64
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **shape,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    save_policy(Policy(model, tokenizer, 64), folder / "policy")
    texts = [f"{a}{b}" for a in "abcd" for b in ("", "x", "xyz", "xyzxyz")]
    tables = {
        "chat": [{**asked(t), "completion": said(t[::-1] * 2)} for t in texts],
        "preference_pairs": [
            {**asked(t), "chosen": said(t + "a"), "rejected": said("b" + t[:1]), "margin": 0.5} for t in texts
        ],
        "prompts": [asked(t) for t in PROMPTS],
    }
    for kind, rows in tables.items():
        (folder / kind).mkdir()
        write_rows(folder / kind, kind, rows)


def job(folder, kind, name, strategy=None, *, stop=None, after=None):
    taught = {"data": "chat"}
    tables = {
        **dict.fromkeys(("sft", "adapters", "muon", "lion"), taught),
        "rl": {"prompts": "prompts", "eval_prompts": "prompts"},
    }
    tables = tables.get(kind, {"data": "preference_pairs"})
    inputs = {"model": str(folder / "policy"), **{port: str(folder / table) for port, table in tables.items()}}
    stage = {"kind": kind, **STAGES[kind], **TRAINING}
    return {
        "name": f"{name}-{kind}",
        "strategy": strategy,
        "stop": stop,
        "after": after and f"{after}-{kind}",
        "stage": stage,
        "inputs": inputs,
    }


def start(folder, jobs):
    """Every job on two processes, which must end well."""
    place = folder / "two"
    place.mkdir()
    (place / "jobs.json").write_text(json.dumps({"size": 2, "jobs": jobs, "folder": str(folder)}))
    path = f"{HOUSE}:{HERE}"
    words = [[sys.executable, str(HERE / "group_ranks.py"), str(place), str(rank)] for rank in range(2)]
    started = [subprocess.Popen(w, cwd=HOUSE, env={**os.environ, "PYTHONPATH": path}) for w in words]
    assert [process.wait(500) for process in started] == [0, 0]


def do_alone(folder, jobs):
    """Every job in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)  # the jobs name a reward in this folder
        for one in jobs:
            do(one, folder, ALONE)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """What one process made of every kind, what two ranks did, and what each went on from the other's checkpoints."""
    folder = tmp_path_factory.mktemp("groups")
    make_inputs(folder)
    alone = [job(folder, kind, "alone") for kind in KINDS]
    alone += [job(folder, kind, "begun", stop=2) for kind in RESUMED]
    do_alone(folder, alone)
    both = [job(folder, kind, strategy, strategy) for kind in KINDS for strategy in STRATEGIES]
    for kind in RESUMED:
        both += [
            job(folder, kind, "cut", "fsdp2", stop=2),
            job(folder, kind, "continued", "fsdp2", after="cut"),
            job(folder, kind, "grown", "fsdp2", after="begun"),
        ]
    start(folder, both)
    do_alone(folder, [job(folder, kind, "shrunk", after="cut") for kind in RESUMED])
    return folder


def gradient(place, name, rank=0):
    return load_file(place / name / str(rank) / "gradient.safetensors")


def told(place, name, rank=0):
    return json.loads((place / name / str(rank) / "told.json").read_text())


def weights(place, name):
    folder = place / name / "0" / "outputs" / "model"
    adapter = folder / "adapter_model.safetensors"
    return load_file(adapter if adapter.is_file() else folder / "model.safetensors")


def assert_close(one, other, atol):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, atol=atol, rtol=0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", KINDS)
def test_trap_01_two_ranks_have_the_gradient_of_one_process(place, kind, strategy):
    alone = gradient(place, f"alone-{kind}")
    assert max(float(g.abs().max()) for g in alone.values()) > 1e-3
    for rank in range(2):
        assert_close(alone, gradient(place, f"{strategy}-{kind}", rank), 1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_take_the_steps_of_one_and_end_with_its_model(place, kind, strategy):
    alone, both = told(place, f"alone-{kind}"), told(place, f"{strategy}-{kind}")
    assert [point["step"] for point in both["curve"]] == [1, 2, 3]
    for mine, theirs in zip(alone["curve"], both["curve"], strict=True):
        assert theirs == pytest.approx(mine, abs=2e-5, rel=1e-4)
    assert both["spent"] == alone["spent"]
    # Muon rounds the moment to bfloat16, which makes a few entries differ by a share of the learning rate.
    atol = 2e-4 if kind == "muon" else 2e-5
    assert_close(weights(place, f"alone-{kind}"), weights(place, f"{strategy}-{kind}"), atol)
    assert not (place / f"{strategy}-{kind}" / "1" / "outputs").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_is_half_of_what_is_trained(place, kind):
    for rank in range(2):
        held, total = json.loads((place / f"fsdp2-{kind}" / str(rank) / "held.json").read_text())
        assert held == pytest.approx(total / 2, rel=0.02)  # a head of one row is whole on one rank
        held, total = json.loads((place / f"ddp-{kind}" / str(rank) / "held.json").read_text())
        assert held == total


def test_trap_20_ranks_sample_apart_and_as_one_process_does(place):
    def texts(name):
        import pyarrow.parquet as pq

        folder = place / name / "0" / "outputs" / "trajectories"
        table = pq.read_table(next(folder.glob("*.parquet"))).to_pylist()
        return [(row["step"], row["completion"]) for row in table]

    alone, both = texts("alone-rl"), texts("ddp-rl")
    assert both == alone == texts("fsdp2-rl")
    assert len({text for step, text in alone if step == 0}) > 6


@pytest.mark.parametrize("kind", RESUMED)
def test_a_group_continues_from_its_shards_to_the_same_bits(place, kind):
    whole, continued = told(place, f"fsdp2-{kind}"), told(place, f"continued-{kind}")
    assert continued == {**whole, "spent": continued["spent"]}


@pytest.mark.parametrize("kind", RESUMED)
def test_more_and_fewer_ranks_continue_from_each_others_checkpoints(place, kind):
    shards = sorted(p.name for p in (place / f"checkpoints-of-cut-{kind}" / "step-00000001").iterdir())
    assert len([name for name in shards if name.endswith(".safetensors")]) == 2
    for name in ("grown", "shrunk"):
        assert_close(weights(place, f"alone-{kind}"), weights(place, f"{name}-{kind}"), 2e-5)
        curves = zip(told(place, f"alone-{kind}")["curve"], told(place, f"{name}-{kind}")["curve"], strict=True)
        for mine, theirs in curves:
            assert theirs == pytest.approx(mine, abs=2e-5, rel=1e-4)


def test_a_drive_that_trains_on_groups_as_they_come_is_refused_in_a_group(tmp_path):
    make_inputs(tmp_path)
    words = {"kind": "rl", **STAGES["rl"], **TRAINING, "critic": None, "advantage": ["center"], "rollout": "periodic"}
    inputs = {"model": tmp_path / "policy", "prompts": tmp_path / "prompts"}
    stage = Rl.model_validate({**words, "rewards": ["answers.exact"], "num_mini_batches": 1})
    with pytest.raises(StepError, match="needs a single trainer"):
        run(stage, Context(inputs, tmp_path, tmp_path, seed=3, group=Group(rank=0, size=2)))
