"""Reinforcement learning of adapters: the base stands still and is the reference; the stage resumes to its bits."""

import json

import pytest
import torch

from learning.batch.batch_layout import single_turn
from learning.batch.micro_batches import statistics_of
from learning.data.rows import write_rows
from learning.lookup import Bound
from learning.models.adapters import attach_adapters
from learning.models.policy import load_policy
from learning.models.sharded_model import Trained
from learning.rl.references import References
from learning.samples.engine_protocol import Generation
from tasks.rl import run
from tests.tasks.rl_stages import make_rl_stage

HERE = __name__


def stage(**more):
    return make_rl_stage(
        **{
            "rewards": [f"{HERE}:early"],
            "max_completion_length": 6,
            "max_steps": 4,
            "learning_rate": 3e-2,
            "loss_terms": [{"use": "kl", "estimator": "k3", "coef": 0.01}],
            "use_peft": True,
            "lora_r": 4,
            **more,
        }
    )


def early(completions):
    """Right is what holds one of the first letters."""
    return [float(any(letter in text for letter in "abcdefgh")) for text in completions]


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    rest = {"answer": "", "family": "letters", "metadata": "{}"}
    rows = [{"id": t, "prompt": [{"role": "user", "content": t}], **rest} for t in ("ab", "c")]
    write_rows(folder, "prompts", rows)
    return {"model": tiny_policy_folder, "prompts": folder}


def test_trap_24_adapters_resume_and_the_base_is_what_it_was(same_when_interrupted, inputs, tmp_path):
    both = {"critic": {"learning_rate": 1e-2}, "advantage": ["gae"], "references": {"prev": {"sync_steps": 2}}}
    words = {**both, "advantage_shaping": [f"{HERE}:nearer"]}
    points = same_when_interrupted(run, stage(**words), (1, 3))
    # Adapters start as nothing: the reference, the base without them, is the policy; and then it is not.
    assert points[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert points[-1]["kl"] > 1e-5
    assert points[0]["logprob_gap"] < 1e-5
    made = tmp_path / "whole-0" / "outputs" / "model"
    start, base, folded = load_policy(inputs["model"]), load_policy(made / "base"), load_policy(made)
    was, now, new = (dict(p.model.named_parameters()) for p in (start, base, folded))
    assert all(torch.equal(was[name], now[name]) for name in was)
    moved = {name for name in was if not torch.equal(was[name], new[name])}
    assert moved
    assert all("proj" in name for name in moved)


@pytest.mark.parametrize("rollout", [{"use": "synchronous"}, {"use": "one_step_off"}], ids=lambda use: use["use"])
def test_over_weights_in_4_bits_sampling_reference_and_result_are_the_trained_policy(at, inputs, training, rollout):
    context = at("quantised")
    run(stage(load_in_4bit=True, references={"prev": {"sync_steps": 2}}, rollout=rollout), context)
    points = training.curve(context)
    assert points[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert points[-1]["kl"] > 1e-5
    assert points[0]["logprob_gap"] < 1e-5
    made = context.folder / "outputs" / "model"
    assert json.loads((made / "base.json").read_text())["bnb_4bit_quant_type"] == "nf4"
    start, merged = (load_policy(folder).model.model.layers[0].mlp for folder in (inputs["model"], made))
    with torch.no_grad():
        changed = (start.down_proj.weight - merged.down_proj.weight).abs().amax(1)
    assert float(changed.min()) > 0.005  # by rounding to 4 bits, wherever training moved it


def nearer(advantage_T, lp_behav_T, lp_prev_T):
    """Asks for a reference that follows."""
    return advantage_T + 0.01 * (lp_prev_T - lp_behav_T)


def test_the_reference_is_the_policy_without_its_adapters(tiny_policy, tiny_policy_folder):
    made = single_turn(
        [[5, 6], [7]], [[Generation([8, 9, 10], [-1.0] * 3, "stop")], [Generation([11], [-1.0], "stop")]]
    )
    words = stage()
    tiny_policy.model = attach_adapters(tiny_policy.model, words)
    for name, parameter in tiny_policy.model.named_parameters():
        if "lora" in name:
            parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1

    class Asked:
        def needs(self, column):
            return column == "lp_ref_T"

    references = References(words, Asked(), tiny_policy, {})
    how = {"max_tokens": 99, "temperature": 1.0}
    got = references.add_to(made, Trained(tiny_policy.model), **how).sampled("lp_ref")
    want = statistics_of(made, load_policy(tiny_policy_folder).model, ("lp",), **how)["lp"]
    assert torch.equal(got, want)
    assert references.models == {}
    own = statistics_of(made, tiny_policy.model, ("lp",), **how)["lp"]
    assert float((own - want).abs().max()) > 1e-3
    trained = {name for name, p in tiny_policy.model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora" in name for name in trained)


def test_adapters_of_full_rank_can_do_what_all_weights_can(tiny_policy, tiny_policy_folder):
    """Any change of a layer is one of its adapter once the rank is that of the layer."""
    words = stage(lora_r=32, lora_alpha=32, lora_target_modules=["q_proj"])
    plain = load_policy(tiny_policy_folder)
    name = "model.layers.0.self_attn.q_proj"
    change = torch.randn(plain.model.get_submodule(name).weight.shape, generator=torch.Generator().manual_seed(2)) * 0.1
    adapted = attach_adapters(tiny_policy.model, words)
    layer = adapted.get_base_model().get_submodule(name)
    layer.lora_A["default"].weight.data = torch.eye(32)
    layer.lora_B["default"].weight.data = change
    plain.model.get_submodule(name).weight.data += change
    made = single_turn([[5, 6]], [[Generation([8, 9, 10], [-1.0] * 3, "stop")]])
    how = {"max_tokens": 99, "temperature": 1.0}
    one, other = (statistics_of(made, m, ("lp",), **how)["lp"] for m in (adapted, plain.model))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_dropout_of_adapters_is_refused():
    with pytest.raises(ValueError, match="lora_dropout"):
        stage(lora_dropout=0.1)


def test_the_output_is_an_adapter():
    assert stage().outputs({})["model"] == "adapter"
    assert stage(use_peft=False).outputs({})["model"] == "policy"
    assert Bound("early", early, {})(["a", "z"]) == [1.0, 0.0]
