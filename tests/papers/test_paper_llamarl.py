"""LlamaRL: the weight of a gradient is min(π/μ, 2)·A, and the generator runs concurrently, one update behind the
trainer.

Not shown: 10.7 times the speed at 405B, direct memory access.
"""

import math
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import view_columns, with_dropped
from learning.batch.batch_layout import single_turn
from learning.generation.engines.torch import Engine
from learning.generation.weights.local import Files, PolicyReceiver, read_weights
from learning.generation.weights.protocol import collect_weights, make_receipt
from learning.models.policy import load_policy
from learning.samples.engine_protocol import Generation
from schemas.recipe.load import load_recipe
from tests.papers.loops import letters
from tests.waiting import wait_for

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "llamarl.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
DOUBLE = {"dtype": torch.float64}
RATIOS = [0.1, 1.0, 5.0]


def gradient_weights(name, advantage):
    """Derivatives of minus the recipe's loss by log π, of tokens whose ratios to the sampler are RATIOS."""
    behav = [-3.0, -3.0, -3.0]
    made = single_turn([[1]], [[Generation([7, 8, 9], behav, "stop")]])
    made = with_dropped(made.with_paths(reward=torch.ones(1, **DOUBLE)), False)
    made = made.with_tokens(advantage=torch.full((3,), advantage, **DOUBLE))
    algorithm = bind_algorithm(STAGES[name], {})
    lp_T = torch.tensor([b + math.log(r) for b, r in zip(behav, RATIOS, strict=True)], **DOUBLE, requires_grad=True)
    columns = view_columns(made, {"lp": lp_T})
    columns["lp_T"] = lp_T
    columns["log_ratio_T"] = algorithm.ratio.ask(0, columns)
    return (-torch.autograd.grad(algorithm.policy_loss.ask(0, columns).sum(), lp_T)[0]).tolist()


def test_the_ratio_is_bounded_from_above_alone():
    assert gradient_weights("trained", 1.0) == pytest.approx([0.1, 1.0, 2.0], abs=1e-12)
    assert gradient_weights("trained", -1.0) == pytest.approx([-0.1, -1.0, -2.0], abs=1e-12)


def test_ppos_clip_has_no_gradient_beyond_its_bounds():
    assert gradient_weights("clipped", 1.0) == pytest.approx([0.1, 1.0, 0.0], abs=1e-12)
    assert gradient_weights("clipped", -1.0) == pytest.approx([0.0, -1.0, -5.0], abs=1e-12)


def test_samples_of_a_step_carry_the_version_before(scripted, loop):
    policy = scripted(dict(zip("abcdefgh", (2, 9, 3, 20, 2, 5, 17, 4), strict=True)))
    run = loop(STAGES["trained"], policy, letters("abcdefgh"), num_groups=4, max_steps=5)

    def train(samples):
        policy.model.sharpness = 3.0 + run.step

    for step in range(5):
        samples = run.iterate(train)
        assert {v for t in samples for v in t.versions} == {max(step - 1, 0)}
        assert len(samples) == 4
        sharpness = 2.0 + max(step - 1, 0)
        want = sharpness - math.log(math.exp(sharpness) + policy.model.size - 1)
        assert [lp for t in samples for lp in t.logprobs] == pytest.approx(
            [want] * sum(len(t.logprobs) for t in samples)
        )


def test_the_generator_works_while_the_trainer_does(scripted, loop):
    """The event log of one iteration: tokens are sampled, and a group ends, between beginning and end of an update."""
    policy = scripted(dict.fromkeys("abcd", 3) | dict.fromkeys("efgh", 30))
    run = loop(STAGES["trained"], policy, letters("abcdefgh"), num_groups=4, max_steps=3)
    log = []

    def train(samples):
        log.append(("update begins", run.step))
        wait_for(lambda: run.source.service.counts["ended"] >= 8)
        log.append((f"{int(run.source.service.counts['ended'])} have ended", run.step))
        log.append(("update ends", run.step))

    samples = run.iterate(train)
    assert {t.row["id"][1] for t in samples} == set("abcd")
    # The next batch, three times as long, was sampled to its end inside this update.
    assert log == [("update begins", 0), ("8 have ended", 0), ("update ends", 0)]
    assert {t.row["id"][1] for t in run.iterate()} == set("efgh")


def digest(policy):
    return make_receipt(0, "", collect_weights(policy.model)).checksums


def change(policy):
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.01)


def test_after_the_hand_over_the_generators_weights_are_the_trainers(tiny_policy, loop):
    run = loop(STAGES["trained"], tiny_policy, letters("abcd"), num_groups=2, max_steps=4, tokens=6)
    before = digest(tiny_policy)
    for _ in range(3):
        run.iterate(lambda samples: change(tiny_policy))
        assert digest(run.source.copy) == digest(tiny_policy) != before


def test_so_they_are_where_generator_and_trainer_are_processes(tiny_policy, tiny_policy_folder, tmp_path):
    theirs = load_policy(tiny_policy_folder)
    generator = PolicyReceiver(theirs, Engine(theirs), read_weights)
    trainer = Files(tiny_policy, tmp_path / "weights")
    for version in (1, 2):
        change(tiny_policy)
        assert digest(theirs) != digest(tiny_policy)
        receipt = trainer.publish(version)
        generator.load(receipt)
        assert digest(theirs) == digest(tiny_policy) == receipt.checksums
        assert generator.version == version
