"""A population of instructions: what is refused, and what the proposer's texts may be."""

import numpy as np
import pytest

from learning.collection.instructions import compute_chances, instruction_credit
from learning.lookup import bind
from learning.samples.sample import Sample
from schemas.errors import StepError
from schemas.use import PromptSamplerUse

ROWS = [
    {"id": str(i), "prompt": [{"role": "user", "content": f"{i}?"}], "answer": "x", "family": "f"} for i in range(6)
]
SAID = ["new"]


def writes(row, rng):
    return SAID[0]


class Sampler:
    """Answers rightly under every instruction, and notes them."""

    def __init__(self):
        self.asked = []

    def sample(self, requests):
        self.asked += [request.prompt[0]["content"] for request in requests]
        return [Sample(one.row, g, "policy", [1], [2], [-1.0], "stop", "x") for g, one in enumerate(requests)]


def draw(state, sampler, **options):
    use = {
        "use": "instruction_population",
        "instructions": ["a", "b"],
        "proposer": f"{__name__}:writes",
        "verify": "answers.exact",
        "every": 1,
        **options,
    }
    supplies = {"rows": ROWS, "num_groups": 3, "n": 2, "seed": 0, "step": 1, "rng": np.random.default_rng(0)}
    bound = bind(PromptSamplerUse.model_validate(use), "prompt_sampler")
    return bound.ask(1, supplies | {"state": state, "sampler": sampler})


def of(*texts, weights=None):
    return {"population": [{"text": t, "weight": w} for t, w in zip(texts, weights or [0.5] * len(texts), strict=True)]}


@pytest.mark.parametrize("said", ["", "  ", "b"])
def test_an_empty_text_and_one_that_is_known_are_not_verified(monkeypatch, said):
    monkeypatch.setitem(globals(), "SAID", [said])
    state, sampler = of("a", "b", weights=[0.1, 0.2]), Sampler()
    draw(state, sampler)
    assert [entry["text"] for entry in state["population"]] == ["b"]
    assert sampler.asked == []


def test_free_places_are_filled_and_the_last_instruction_is_never_pruned(monkeypatch):
    state, sampler = of("b"), Sampler()
    requests = draw(state, sampler, prune=3, verify_groups=2)
    assert state["population"] == [{"text": "b", "weight": 0.5}, {"text": "new", "weight": 1.0}]
    assert sampler.asked == ["new"] * 2
    assert [request.n for request in requests] == [2] * 3
    assert all(request.prompt[0] == {"role": "system", "content": request.row["instruction"]} for request in requests)
    monkeypatch.setitem(globals(), "SAID", ["x" * 9000])
    draw(state, sampler)
    assert max(len(entry["text"]) for entry in state["population"]) == 4000


def test_what_cannot_be_done_is_refused():
    with pytest.raises(StepError, match="two instructions are the same"):
        draw({}, Sampler(), instructions=["a", "a"])
    with pytest.raises(StepError, match="temperature 0 must be above 0"):
        compute_chances([0.0], 0)
    with pytest.raises(StepError, match="use it with `prompt_sampler: instruction_population`"):
        instruction_credit([], {}, None)


def test_samples_without_a_reward_move_nothing():
    states = {"prompt_sampler": of("a", "b")}
    row = ROWS[0] | {"instruction": "a"}
    samples = [
        Sample(row, 0, "policy", [1], [2], [-1.0], "stop", "x"),
        Sample(ROWS[1], 1, "policy", [1], [2], [-1.0], "stop", "x"),
    ]
    samples[1].reward = 1.0
    assert instruction_credit(samples, states, None) is samples
    assert states["prompt_sampler"]["population"] == of("a", "b")["population"]
