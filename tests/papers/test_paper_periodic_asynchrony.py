"""Periodic Asynchrony: training overlaps sampling by one version of the weights and gives the synchronous gradient.

Not shown: 2 times the throughput on NPUs.
"""

import itertools
import threading
from pathlib import Path

import pytest
import torch

from learning.batch.batch_layout import forest
from learning.models.packed import choose_forward, packed_logprobs
from schemas.recipe.load import load_recipe
from schemas.use import RewardUse
from tests.papers.loops import Loop, Update, by_chance, equal, letters

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "periodic-asynchrony.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages


def mixed(rows, completions):
    """A reward that differs within a group."""
    return [float(len(set(text)) + 3 * ("a" in text) + i % 2) for i, text in enumerate(completions)]


@pytest.fixture
def loop():
    made = []

    def make(name, policy, rows, **how):
        made.append(Loop(STAGES[name], policy, rows, rewards=[RewardUse(use=f"{__name__}:mixed")], **how))
        return made[-1]

    yield make
    for one in made:
        one.stream.close()


@pytest.mark.parametrize("name", ["trained", "arrived"])
def test_the_first_group_is_trained_on_before_the_last_one_has_ended(scripted, loop, name):
    """The event log: after the first completion generation stands still until the trainer has had its group."""
    run = loop(name, scripted({"a": 2, "b": 30, "c": 9, "d": 4}), letters("abcd"), num_groups=4)
    go_on, log, turn = threading.Event(), [], run.source.service.turn

    def held():
        if run.source.service.counts["ended"] >= 1:
            go_on.wait(60)
        return turn()

    def consume(samples):
        log.append((samples[0].row["id"][1], int(run.source.service.counts["ended"])))
        go_on.set()

    run.source.service.turn = held
    samples = run.iterate(consume=consume)
    assert log[0] == ("a", 1)
    seen = [letter for letter, _ in log]
    assert sorted(seen) == ["a", "b", "c", "d"]
    assert name == "arrived" or seen == sorted(seen)
    assert len(samples) == 4


def test_every_sample_of_an_iteration_is_of_its_version(tiny_policy, loop):
    run = loop("trained", tiny_policy, letters("abcdef"), num_groups=3, n=2, tokens=8, plan=by_chance)
    for step in range(4):
        before = tiny_policy.model.state_dict()["lm_head.weight"].clone()

        def train(samples):
            with torch.no_grad():
                for parameter in tiny_policy.model.parameters():
                    parameter.mul_(1.02)

        samples = run.iterate(train, consume=lambda samples: None)
        assert {v for t in samples for v in t.versions} == {step}
        assert not torch.equal(before, tiny_policy.model.state_dict()["lm_head.weight"])
        assert torch.equal(run.source.copy.model.lm_head.weight, tiny_policy.model.lm_head.weight)


@pytest.mark.parametrize("name", ["trained", "arrived"])
def test_the_gradient_is_the_synchronous_one(tiny_policy, loop, name):
    run = loop(name, tiny_policy, letters("abcdef"), num_groups=6, n=3, tokens=48, plan=by_chance)
    ours = Update(STAGES[name], tiny_policy)
    samples = run.iterate(consume=ours.pieces.add)
    assert len({len(t.completion_ids) for t in samples}) > 3
    equal(ours.finish(samples), Update(STAGES["synchronous"], tiny_policy).at_once(samples))


def test_whatever_the_order_of_arrival(tiny_policy, loop):
    run = loop("arrived", tiny_policy, letters("abcd"), num_groups=4, n=3, tokens=8, plan=by_chance)
    groups = []
    samples = run.iterate(consume=groups.append)
    want = Update(STAGES["synchronous"], tiny_policy).at_once(samples)
    for order in itertools.islice(itertools.permutations(range(4)), 0, None, 5):
        ours = Update(STAGES["arrived"], tiny_policy)
        for i in order:
            ours.pieces.add(groups[i])
        equal(ours.finish(samples), want)


def test_a_shared_prompt_is_computed_once_and_gives_the_same_log_probs(tiny_policy, loop):
    rows = [letters("a")[0] | {"prompt": [{"role": "user", "content": "one and one and one and one"}]}]
    run = loop("synchronous", tiny_policy, rows, num_groups=1, n=6, tokens=12, plan=by_chance)
    samples = run.iterate()
    prompt, sizes = samples[0].prompt_ids, [len(t.completion_ids) for t in samples]
    batch, seen = forest(samples), []
    choose_forward(tiny_policy.model)  # the check has forward passes of its own
    hook = tiny_policy.model.base_model.embed_tokens.register_forward_hook(
        lambda _, ids, out: seen.append(ids[0].numel())
    )
    together = packed_logprobs(tiny_policy.model, batch.packed)[0][batch.sampled_T]
    assert seen == [len(prompt) + sum(sizes)]
    hook.remove()
    apart = []
    for sample in samples:
        ids = torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])
        lp = tiny_policy.model(ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        apart.append(lp.gather(1, torch.tensor(sample.completion_ids)[:, None])[:, 0])
    torch.testing.assert_close(together, torch.cat(apart), atol=1e-5, rtol=0)
    assert len(prompt) + sum(sizes) < 6 * len(prompt) + sum(sizes)
