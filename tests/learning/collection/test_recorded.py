"""Recorded completions in the place of samples, whose steps are turns, and what is computed from such steps."""

import numpy as np
import pytest
import torch

from learning.algorithm.policy_losses.regressions import direct_advantage
from learning.batch.batch_layout import forest
from learning.collection.rollouts.recorded import recorded
from learning.data.chat import encode_completion
from learning.data.rows import write_rows
from learning.data.steps import encode_steps
from learning.samples.sample import SampleRequest
from schemas.errors import StepError

ROW = {"id": "q", "prompt": [{"role": "user", "content": "?"}], "answer": "3", "family": "f", "metadata": "{}"}
TEXTS = ["a; bb; 3", "3", "c; 4"]


@pytest.fixture
def data(tmp_path):
    """A chat artifact with three completions of one problem."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(folder, "chat", [ROW | {"completion": [{"role": "assistant", "content": text}]} for text in TEXTS])
    return str(folder)


def take(answering, data, n=3, seed=0, **options):
    sampler = answering(lambda prompt, number: "never")
    requests = [SampleRequest(ROW, n), SampleRequest(ROW, n)]
    return recorded(requests, sampler, np.random.default_rng(seed), data=data, **options)


def test_a_group_has_completions_of_its_problem_without_replacement(answering, data):
    samples = take(answering, data, n=2)
    assert [sample.group for sample in samples] == [0, 0, 1, 1]
    for group in (0, 1):
        own = [sample.text for sample in samples if sample.group == group]
        assert len(set(own)) == 2
        assert set(own) <= set(TEXTS)
    assert {sample.logprobs for sample in samples} == {None}
    assert [sample.text for sample in take(answering, data, n=2)] == [sample.text for sample in samples]
    drawn = {tuple(s.text for s in take(answering, data, n=2, seed=seed)) for seed in range(6)}
    assert len(drawn) > 1


def test_steps_are_turns_with_the_tokens_of_a_process_reward_model(answering, data, tiny_policy):
    (sample,) = [one for one in take(answering, data, separator="; ") if one.text == TEXTS[0]][:1]
    encoded = encode_steps(tiny_policy.tokenizer, ROW["prompt"], ["a", "bb"], "; ")
    last = encode_completion(tiny_policy.tokenizer, [{"role": "assistant", "content": "3"}])
    assert sample.completion_ids == [*encoded.completion, *last]
    assert [turn.sampled for turn in sample.turns] == [encoded.ends[0] + 1, encoded.ends[1] - encoded.ends[0]]
    assert (sample.num_turns, sample.own) == (3, [True] * len(sample.completion_ids))
    batch = forest([sample])
    assert batch.sampled("turn").bincount().tolist() == [*(turn.sampled for turn in sample.turns), len(last)]
    (whole,) = [one for one in take(answering, data) if one.text == TEXTS[0]][:1]
    assert whole.turns == []


def test_too_few_and_too_long_completions_are_refused(answering, data, tmp_path):
    with pytest.raises(StepError, match="problem q has 3 completions in `data`, and a group has 4"):
        take(answering, data, n=4)
    folder = tmp_path / "long"
    folder.mkdir()
    write_rows(folder, "chat", [ROW | {"completion": [{"role": "assistant", "content": "9" * 200}]}])
    with pytest.raises(StepError, match="but the model's context is 128"):
        take(answering, str(folder), n=1)


def test_the_loss_is_the_square_of_each_turn_and_its_gradient():
    lp_T = torch.tensor([-1.0, -2.0, -0.5, -3.0], dtype=torch.float64, requires_grad=True)
    ref_T = torch.tensor([-1.5, -1.0, -0.5, -1.0], dtype=torch.float64)
    advantage_T = torch.tensor([0.2, 0.2, -0.4, 1.0], dtype=torch.float64)
    path_T, turn_T = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 0])
    loss_T = direct_advantage(lp_T, ref_T, advantage_T, path_T, turn_T, beta=0.5)
    gaps = [0.5 * (0.5 - 1.0) - 0.2, 0.5 * 0.0 + 0.4, 0.5 * -2.0 - 1.0]
    expected = [gap**2 / 2 for gap in gaps]
    assert loss_T.tolist() == pytest.approx([expected[0], *expected])
    (grad_T,) = torch.autograd.grad(loss_T[1:].sum(), lp_T)
    assert grad_T.tolist() == pytest.approx([0.5 * gap for gap in (gaps[0], *gaps)])
    assert direct_advantage(lp_T[:0], ref_T[:0], advantage_T[:0], path_T[:0], turn_T[:0]).tolist() == []
