"""Weights between trainer and engine: all of them arrive, or an error says which did not."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from learning.generation.engines.torch import Engine
from learning.generation.weights.local import Files, InProcess, PolicyReceiver, read_weights
from learning.generation.weights.protocol import Receipt, collect_weights, find_aliases
from learning.generation.weights.sync_check import measure_logprob_gap
from learning.models.checksum import compute_checksum
from learning.models.policy import Policy
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError

PROMPTS = [[5, 6, 7], [4, 8, 15, 16, 23]]


@pytest.fixture
def replica(tiny_policy):
    """Another policy with other weights, and its engine."""
    model = copy.deepcopy(tiny_policy.model)
    shake(model, 9)
    policy = Policy(model, tiny_policy.tokenizer, tiny_policy.max_length)
    return policy, Engine(policy)


def shake(model, seed, scale=0.3):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def same(first, second):
    ours, theirs = first.model.state_dict(), second.model.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_a_checksum_sees_every_bit_place_type_and_shape(dtype):
    values = torch.arange(1, 4_200_004)
    values = values % 2 if dtype is torch.bool else values
    tensor = values.to(dtype)
    checksum = compute_checksum(tensor)
    assert checksum == compute_checksum(tensor.clone()) != compute_checksum(tensor.reshape(-1, 1))
    changed = tensor.clone()
    changed[-1] = ~changed[-1] if dtype is torch.bool else changed[-1] + changed[-1] // 3 + 1
    swapped = tensor.clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    assert checksum not in (compute_checksum(changed), compute_checksum(swapped), compute_checksum(tensor[:-1]))
    assert compute_checksum(tensor[1::2]) == compute_checksum(
        tensor[1::2].contiguous()
    )  # by what it says, not by how it lies


def test_a_tied_head_is_named_but_travels_once(tiny_policy):
    weights = collect_weights(tiny_policy.model)
    assert find_aliases(weights) == {"lm_head.weight": "model.embed_tokens.weight"}
    assert weights.keys() == tiny_policy.model.state_dict().keys()


def test_through_a_file(tiny_policy, replica, tmp_path):
    policy, engine = replica
    sync, receiver = Files(tiny_policy, tmp_path), PolicyReceiver(policy, engine, read_weights)
    before = engine.generate([Request(PROMPTS[0], 2, 3)], Sampling(1.0, 12))
    assert measure_logprob_gap(engine, tiny_policy, PROMPTS) > 0.1
    for version in range(1, 5):
        shake(tiny_policy.model, version)
        receipt = pickle.loads(pickle.dumps(sync.publish(version)))
        sync.wait()
        receiver.load(receipt)
        assert same(tiny_policy, policy)
        assert (engine.version, receiver.version, sync.version) == (version,) * 3
        assert measure_logprob_gap(engine, tiny_policy, PROMPTS) < 1e-5
    assert engine.generate([Request(PROMPTS[0], 2, 3)], Sampling(1.0, 12)) != before
    assert [f.name for f in sorted(tmp_path.iterdir())] == [f"weights-{v:08d}.safetensors" for v in (3, 4)]
    assert "lm_head.weight" not in load_file(receipt.where)
    sync.reset_cache()
    with pytest.raises(StepError, match="version 4 cannot be read"):
        receiver.load(receipt)


def test_files_of_a_longer_earlier_attempt_are_ignored(tiny_policy, replica, tmp_path):
    before = Files(tiny_policy, tmp_path)
    for version in range(1, 8):
        before.publish(version)
    again, receiver = Files(tiny_policy, tmp_path), PolicyReceiver(*replica, read_weights)
    for version in (4, 5, 6):
        receiver.load(again.publish(version))
        assert receiver.version == version
    assert [file.name for file in sorted(tmp_path.iterdir())] == [f"weights-0000000{v}.safetensors" for v in (5, 6)]


def test_within_a_process(tiny_policy, replica):
    sync = InProcess(tiny_policy)
    receiver = PolicyReceiver(*replica, sync.fetch)
    receiver.load(sync.publish(1))
    assert same(tiny_policy, replica[0])
    late = sync.publish(2)
    shake(tiny_policy.model, 4)
    with pytest.raises(StepError, match="is not what was published"):
        receiver.load(late)
    assert receiver.version == -1
    sync.reset_cache()
    with pytest.raises(StepError, match="no longer available"):
        receiver.load(late)


def damaged(receipt, how, tmp_path):
    """What arrives instead of the file."""
    tensors = load_file(receipt.where)
    if how == "nothing":
        tensors = {}
    elif how == "partial":
        tensors.pop("model.layers.0.self_attn.q_proj.weight")
    elif how == "stale":
        tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1e-7
    elif how == "renamed":
        tensors["model.layers.9.mlp.up_proj.weight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    save_file(tensors, tmp_path / "damaged.safetensors")
    return replace(receipt, where=str(tmp_path / "damaged.safetensors"))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("nothing", "lacks lm_head.weight"),
        ("partial", r"lacks model\.layers\.0\.self_attn\.q_proj\.weight"),
        ("stale", r"model\.norm\.weight of version 1 is not what was published"),
        ("renamed", r"model\.layers\.9\.mlp\.up_proj\.weight of version 1 was not published"),
    ],
)
def test_trap_22_what_does_not_arrive_is_an_error(tiny_policy, replica, tmp_path, how, message):
    sync, receiver = Files(tiny_policy, tmp_path / "sync"), PolicyReceiver(*replica, read_weights)
    receipt = sync.publish(1)
    with pytest.raises(StepError, match=message):
        receiver.load(damaged(receipt, how, tmp_path))
    assert receiver.version == -1
    receiver.load(receipt)
    assert same(tiny_policy, replica[0])


def test_trap_22_a_tied_head_must_come_along(tiny_policy, replica, tmp_path):
    receipt = Files(tiny_policy, tmp_path).publish(1)
    with pytest.raises(StepError, match=r"lacks lm_head\.weight"):
        PolicyReceiver(*replica, read_weights).load(replace(receipt, aliases={}))


def test_a_head_that_is_tied_on_one_side_only_is_noticed(tiny_policy, replica, tmp_path):
    loose = copy.deepcopy(tiny_policy.model)
    loose.lm_head.weight = torch.nn.Parameter(tiny_policy.model.lm_head.weight.detach() + 1)
    sync = Files(Policy(loose, tiny_policy.tokenizer, 128), tmp_path)
    with pytest.raises(StepError, match="was overwritten by another"):
        PolicyReceiver(*replica, read_weights).load(sync.publish(1))


def test_versions_never_go_back_and_models_must_agree(tiny_policy, replica, tmp_path):
    sync, receiver = Files(tiny_policy, tmp_path), PolicyReceiver(*replica, read_weights)
    receiver.load(sync.publish(3))
    with pytest.raises(StepError, match="version 2 came after version 3"):
        receiver.load(Receipt(2, "x"))
    with pytest.raises(StepError, match=r"the two models differ, \d+ tensor"):
        receiver.load(Receipt(4, "x"))


def test_adapters_are_added_to_their_base_on_the_way(tiny_policy, replica, tmp_path):
    from learning.models.adapters import attach_adapters
    from schemas.training import LoRA

    base = {name: tensor.clone() for name, tensor in tiny_policy.model.state_dict().items()}
    adapted = attach_adapters(tiny_policy.model, LoRA(use_peft=True, lora_r=4))
    shake(adapted, 2, 0.1)
    kept = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    policy = Policy(adapted, tiny_policy.tokenizer, 128)
    weights = collect_weights(adapted)
    assert weights.keys() == base.keys()
    PolicyReceiver(*replica, read_weights).load(Files(policy, tmp_path).publish(1))
    assert measure_logprob_gap(replica[1], policy, PROMPTS) < 1e-4
    assert all(torch.equal(tensor, kept[name]) for name, tensor in adapted.state_dict().items())
    folded = adapted.merge_and_unload().state_dict()
    assert all(torch.equal(weights[name], folded[name]) for name in base)
