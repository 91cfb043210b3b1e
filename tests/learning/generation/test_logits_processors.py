"""Processors: HAPO's temperature by entropy, and how controllers reach them one iteration later."""

import math

import pytest
import torch

from learning.generation.engines.torch import Engine
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.engine_protocol import Request, Sampling
from learning.sampling.logits_processors import adaptive_temperature
from schemas.stages.rl import Rl

BOUNDS = {"low": math.log(0.1), "pivot": math.log(0.5), "high": math.log(2.0)}


def row_of_entropy(wanted):
    """Logits over 16 tokens whose distribution has an entropy, found by bisection."""
    base = torch.arange(16, dtype=torch.float64).flip(0)
    low, high = 1e-3, 1e3
    for _ in range(200):
        middle = math.sqrt(low * high)
        logp = (base * middle).log_softmax(-1)
        low, high = (middle, high) if float(-(logp.exp() * logp).sum()) > wanted else (low, middle)
    return base * middle


@pytest.mark.parametrize(("h", "factor"), [(0.5, 1.025), (-0.5, 0.975), (0.0, 1.0), (1.0, 1.05), (-1.0, 0.95)])
def test_temperature_is_one_plus_tau_h(h, factor):
    far = BOUNDS["high"] - BOUNDS["pivot"] if h > 0 else BOUNDS["pivot"] - BOUNDS["low"]
    logits = row_of_entropy(math.exp(BOUNDS["pivot"] + h * far))[None]
    got = adaptive_temperature(logits, **BOUNDS)
    torch.testing.assert_close(got, logits / factor, atol=1e-9, rtol=0)


def test_the_engine_reports_what_it_sampled_from(tiny_policy):
    def process(logits_BV, place_B):
        return adaptive_temperature(logits_BV, tau=0.5, **BOUNDS)

    requests = [Request([5, 6, 7], 4, 0), Request([9], 2, 1)]
    made = Engine(tiny_policy, max_slots=4).generate(requests, Sampling(0.8, 12, processor=process))
    plain = Engine(tiny_policy).generate(requests, Sampling(0.8, 12))
    assert [g.token_ids for gs in made for g in gs] != [g.token_ids for gs in plain for g in gs]
    for request, got in zip(requests, made, strict=True):
        for g in got:
            with torch.no_grad():
                logits = tiny_policy.model(torch.tensor([request.prompt_ids + g.token_ids])).logits[0, :-1] / 0.8
            logits = logits[len(request.prompt_ids) - 1 :]
            logp = logits.log_softmax(-1)
            entropy = -(logp.exp() * logp).sum(-1)
            gap = entropy.log() - BOUNDS["pivot"]
            up, down = BOUNDS["high"] - BOUNDS["pivot"], BOUNDS["pivot"] - BOUNDS["low"]
            h = torch.where(gap > 0, gap / up, gap / down).clamp(-1, 1)
            want = (logits / (1 + 0.5 * h)[:, None]).log_softmax(-1)
            want = want.gather(1, torch.tensor(g.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(g.logprobs), want, atol=1e-5, rtol=0)


def stage(**more):
    ports = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["answers.exact"], "max_steps": 1}
    parts = {"advantage": ["center"], "ratio": "token", "policy_loss": "clipped", "loss_aggregation": "token_mean"}
    return Rl.model_validate({**ports, **parts, **more})


def test_a_processor_waits_for_the_first_word_of_its_controllers():
    controls = {name: {"use": "log_entropy_quantile", "q": q} for name, q in (("a", 0.0), ("b", 0.8), ("c", 1.0))}
    use = {
        "use": "adaptive_temperature",
        "low": {"controller": "a"},
        "pivot": {"controller": "b"},
        "high": {"controller": "c"},
    }
    parts = bind_sampling_slots(stage(logits_processors=[use], controllers=controls), {})
    assert parts.logits_processor(0, {}, {}) is None
    assert parts.logits_processor(1, {}, {"controller/a": -2.0, "controller/b": 0.0}) is None
    inputs = {
        "controller/a": BOUNDS["low"],
        "controller/b": BOUNDS["pivot"],
        "controller/c": BOUNDS["high"],
        "reward": 1.0,
    }
    process = parts.logits_processor(1, {}, inputs)
    logits = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(process(logits, torch.zeros(3).long()), adaptive_temperature(logits, **BOUNDS))
    assert bind_sampling_slots(stage(), {}).logits_processor(0, {}, {}) is None


def test_processors_follow_each_other():
    twice = bind_sampling_slots(stage(logits_processors=[{"use": "adaptive_temperature", **BOUNDS}] * 2), {})
    logits = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    once = adaptive_temperature(logits, **BOUNDS)
    want = adaptive_temperature(once, **BOUNDS)
    assert torch.equal(twice.logits_processor(0, {}, {})(logits, torch.zeros(3).long()), want)
