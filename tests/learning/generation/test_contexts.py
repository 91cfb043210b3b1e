"""Logits processors that look at the tokens before: what they are shown, and sampling by values of tokens."""

import math

import pytest
import torch

from learning.auxiliary_networks.action_values import make_action_values, save_action_values
from learning.generation.engines.own_cache import generate_with_own_cache
from learning.generation.engines.torch import Engine
from learning.lookup import bind
from learning.samples.engine_protocol import Request, Sampling
from learning.sampling.logits_processors import action_values, load_cached_values
from learning.sampling.processing import LogitsProcessing, make_processor
from schemas.errors import StepError
from schemas.use import LogitsProcessorUse


class Noting:
    """Notes the contexts that it is shown."""

    reads_contexts = True

    def __init__(self):
        self.seen = []

    def __call__(self, logits_BV, place_B, contexts_B):
        assert len(contexts_B) == len(logits_BV)
        self.seen += [tuple(ids) for ids in contexts_B if ids]
        return logits_BV


REQUESTS = [Request([5, 6, 7], 2, 0), Request([9], 2, 1), Request([5, 6], 1, 2, begun=(8, 4))]


def expected(made):
    """Every beginning of each completion, after its prompt."""
    return sorted(
        (*request.prompt_ids, *request.begun, *g.token_ids[:k])
        for request, got in zip(REQUESTS, made, strict=True)
        for g in got
        for k in range(len(g.token_ids))
    )


@pytest.mark.parametrize("slots", [2, 16])
def test_contexts_are_prompt_and_completion_so_far(tiny_policy, slots):
    noting = Noting()
    made = Engine(tiny_policy, max_slots=slots).generate(REQUESTS, Sampling(1.0, 9, processor=noting))
    assert sorted(noting.seen) == expected(made)
    plain = Engine(tiny_policy, max_slots=slots).generate(REQUESTS, Sampling(1.0, 9))
    assert [g.token_ids for gs in made for g in gs] == [g.token_ids for gs in plain for g in gs]


def test_they_are_the_same_with_the_models_own_cache(tiny_policy):
    noting = Noting()
    ends = tiny_policy.stop_ids
    made = generate_with_own_cache(tiny_policy.model, REQUESTS, Sampling(1.0, 9, processor=noting), ends, 16)
    assert set(noting.seen) >= set(expected(made))


def test_they_are_the_same_in_flight(tiny_policy):
    noting = Noting()
    flight = Engine(tiny_policy, max_slots=2).flight(Sampling(1.0, 9, processor=noting))
    for ticket, request in enumerate(REQUESTS):
        flight.add(ticket, request)
    ended = []
    while flight.running:
        ended += flight.step()
    made = [[g for t, g in ended if t == ticket] for ticket in range(3)]
    assert sorted(noting.seen) == expected(made)


def test_a_large_vocabulary_is_cut_together_with_the_contexts(tiny_policy, monkeypatch):
    monkeypatch.setattr("learning.generation.engines.token_sampling.LOGITS_AT_ONCE", 1)
    noting = Noting()
    made = Engine(tiny_policy).generate(REQUESTS, Sampling(1.0, 9, processor=noting))
    assert sorted(noting.seen) == expected(made)


def fake(monkeypatch, q, v):
    """Values of two tokens, the same in every context; the second of two heads of Q is higher."""
    from learning.auxiliary_networks.action_values import TokenValues

    class Values:
        vocabulary = 2

        def value_contexts(self, contexts):
            q_XHV = torch.tensor([[q, [one + 1 for one in q]]]).repeat(len(contexts), 1, 1)
            return TokenValues(q_XHV, torch.full((len(contexts),), v))

    monkeypatch.setattr("learning.sampling.logits_processors.load_cached_values", lambda folder: Values())


def test_the_policy_is_the_behaviour_times_the_exponential_of_the_advantage(monkeypatch):
    fake(monkeypatch, [2.0, 1.0], 1.0)
    logits = torch.zeros(3, 2)
    logits[1] = torch.tensor([0.75, 0.25]).log()
    changed = action_values(logits, [[1], [1], []], values="v", beta=1.0)
    assert changed[0].softmax(-1).tolist() == pytest.approx([0.7311, 0.2689], abs=1e-4)
    odds = 3 * math.e
    assert changed[1].softmax(-1).tolist() == pytest.approx([odds / (1 + odds), 1 / (1 + odds)])
    assert changed[2].tolist() == [0.0, 0.0]
    alone = action_values(logits, [[1], [1], [1]], values="v", beta=2.0, prior=0.0)
    assert alone.softmax(-1)[1].tolist() == pytest.approx([math.exp(2) / (1 + math.exp(2)), 1 / (1 + math.exp(2))])
    assert torch.equal(action_values(logits, [[], [], []], values="v"), logits)


def test_sampling_reports_the_changed_distribution(tiny_policy, tmp_path):
    network = make_action_values(tiny_policy, 2, start="random", scale=1.0, seed=1)
    save_action_values(network, tiny_policy, tmp_path)
    load_cached_values.cache_clear()
    use = LogitsProcessorUse.model_validate({"use": "action_values", "values": f"path:{tmp_path}", "beta": 3.0})
    processor = make_processor([bind(use, "logits_processors.0", {"logits_processors.0.values": tmp_path})])
    assert isinstance(processor, LogitsProcessing)
    assert processor.reads_contexts
    requests = [Request([5, 6, 7], 3, 0)]
    made = Engine(tiny_policy).generate(requests, Sampling(1.0, 8, processor=processor))
    for g in made[0]:
        want = []
        for k, token in enumerate(g.token_ids):
            ids = [5, 6, 7, *g.token_ids[:k]]
            with torch.no_grad():
                logits = tiny_policy.model(torch.tensor([ids])).logits[0, -1]
            q_V = network.value_contexts([ids]).q_XHV[0].amin(0)
            want.append(float((logits.log_softmax(-1) + 3 * q_V).log_softmax(-1)[token]))
        assert g.logprobs == pytest.approx(want, abs=1e-4)


def test_values_of_another_vocabulary_are_refused(monkeypatch):
    fake(monkeypatch, [2.0, 1.0], 1.0)
    with pytest.raises(StepError, match="values of 2 tokens for a model with 3"):
        action_values(torch.zeros(1, 3), [[1]], values="v")
