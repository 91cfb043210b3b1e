"""Coevolving with the Other You: both agents receive the sum of the rewards, the observer sees the answer, and the
roles swap.

Not shown: robustness against collapse. Training is in rounds: within a round each agent's partner does not change.
"""

from pathlib import Path

import numpy as np
import pytest

from flows.planning.compile import compile_recipe
from learning.collection import cooperation
from learning.problems.second_opinions import second_opinions, show_answer
from learning.rewards import collective
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler, score
from lineage.layout import Layout
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "cory.yaml"
HERE = __name__
PIONEER, OBSERVER = "rewards.0.partner", "prompt_sampler.partner"


@pytest.fixture(scope="module")
def recipe():
    return load_recipe(RECIPE, profile="tiny")


def row(name="q", question="1 + 2 =", answer="3"):
    return {"id": name, "prompt": [{"role": "user", "content": question}], "answer": answer, "family": "chain_sum"}


def task(completions):
    """0.2 for a, 0.7 for b; x cannot be scored."""
    return [{"a": 0.2, "b": 0.7, "x": None}[text] for text in completions]


class Partner:
    """Says what a function makes of the prompt; keeps the prompts."""

    def __init__(self, tokenizer, reply):
        self.tokenizer, self.reply, self.prompts, self.sampling = tokenizer, reply, [], []

    def generate(self, requests, sampling):
        self.sampling.append((sampling.temperature, sampling.max_new_tokens))
        self.prompts += [self.tokenizer.decode(r.prompt_ids) for r in requests]
        texts = [self.reply(self.tokenizer.decode(r.prompt_ids)) for r in requests]
        return [[Generation(self.tokenizer.encode(text), [], "stop")] for text in texts]


@pytest.fixture
def partner(tiny_policy, monkeypatch):
    engine = Partner(tiny_policy.tokenizer, lambda prompt: "b")
    judge = Sampler(engine, tiny_policy, Sampling(), 0, 0)
    monkeypatch.setattr(collective, "guest", lambda folder: judge)
    monkeypatch.setattr(cooperation, "guest", lambda folder: judge)
    return engine


def parts_of(recipe, stage, **inputs):
    """The slots of a stage of the recipe, with a task reward of the test's own."""
    trained = recipe.stages[stage]
    reward = trained.rewards[0].model_copy(update={"of": f"{HERE}:task"})
    return bind_sampling_slots(trained.model_copy(update={"rewards": [reward]}), inputs)


def rewarded(parts, samples):
    score(parts.rewards, parts.weights, samples, {"step": 0, "seed": 0, "states": {}})
    return [t.reward for t in samples]


def sample(text, of=None, group=0):
    return Sample(of or row(), group, "policy", [1], [5], [-1.0], "stop", text)


def asks_of(parts, rows, n=2):
    return parts.prompt_sampler.ask(
        0, {"rows": rows, "num_groups": len(rows), "n": n, "seed": 0, "step": 0, "states": {}}
    )


def test_both_earn_the_sum_of_both_task_rewards(recipe, partner):
    first = parts_of(recipe, "rounds-1-pioneer", **{PIONEER: "B"})
    assert rewarded(first, [sample("a")]) == [pytest.approx(0.9, abs=1e-15)]
    second = parts_of(recipe, "rounds-1-observer", **{OBSERVER: "A"})
    partner.reply = lambda prompt: "a"
    (ask,) = asks_of(second, [row()])
    assert rewarded(second, [sample("b", ask.row)]) == [pytest.approx(0.9, abs=1e-15)]


def test_what_one_of_them_cannot_be_scored_for_neither_can(recipe, partner):
    first = parts_of(recipe, "rounds-1-pioneer", **{PIONEER: "B"})
    assert rewarded(first, [sample("x"), sample("a", group=1)]) == [None, pytest.approx(0.9)]
    partner.reply = lambda prompt: "x"
    assert rewarded(first, [sample("a")]) == [None]
    long = sample("a", row(question="1 + " * 60))
    assert rewarded(first, [long]) == [None]


def test_the_observer_is_shown_the_pioneers_answer_and_the_pioneer_nothing(recipe, partner, tiny_policy):
    rows = [row("q", "1 + 2 ="), row("r", "4 + 5 =")]
    partner.reply = lambda prompt: "zz" if "1 + 2" in prompt else "yy"
    observed = asks_of(parts_of(recipe, "rounds-1-observer", **{OBSERVER: "A"}), rows)
    texts = {ask.row["id"]: ask.row["prompt"][0]["content"] for ask in observed}
    assert texts == {"q": "1 + 2 = zz; 1 + 2 =", "r": "4 + 5 = yy; 4 + 5 ="}
    assert [ask.n for ask in observed] == [2, 2]
    # The pioneer was asked the bare problems, and its own stage plans those.
    assert all(";" not in prompt for prompt in partner.prompts)
    plain = asks_of(parts_of(recipe, "rounds-1-pioneer", **{PIONEER: "B"}), rows)
    assert {ask.row["prompt"][0]["content"] for ask in plain} == {"1 + 2 =", "4 + 5 ="}
    # For its reward the observer is asked with the pioneer's very completion.
    partner.prompts, partner.reply = [], lambda prompt: "b"
    rewarded(parts_of(recipe, "rounds-1-pioneer", **{PIONEER: "B"}), [sample("a", rows[0]), sample("b", rows[1], 1)])
    assert [p.count("; ") for p in partner.prompts] == [1, 1]
    assert ["1 + 2 = a;" in partner.prompts[0], "4 + 5 = b;" in partner.prompts[1]] == [True, True]


def test_a_partner_answers_as_freely_as_it_is_trained(recipe, partner):
    rewarded(parts_of(recipe, "rounds-1-pioneer", **{PIONEER: "B"}), [sample("a")])
    asks_of(parts_of(recipe, "rounds-1-observer", **{OBSERVER: "A"}), [row()])
    trained = recipe.stages["rounds-1-pioneer"]
    assert partner.sampling == [(trained.temperature, trained.max_completion_length)] * 2 == [(1.0, 6)] * 2


def test_an_observer_needs_its_plan(recipe):
    with pytest.raises(StepError, match=r"set `prompt_sampler: \{use: observed"):
        rewarded(parts_of(recipe, "rounds-1-observer", **{OBSERVER: "A"}), [sample("b")])
    with pytest.raises(StepError, match=r"shows no \{shown\}"):
        show_answer(row(), "a", "{prompt}")


def starts(plan, step):
    """What an agent starts from: the key of the step that made its weights."""
    (model_input,) = [i for i in plan.step(step).identity["inputs"].items() if i[0] == "model"]
    return model_input[1]["key"]


def test_weights_change_roles_after_the_steps_of_a_round(recipe, tmp_path):
    plan = compile_recipe(recipe, Layout(tmp_path))
    key = {step.name: step.key for step in plan.steps}
    assert {recipe.stages[f"rounds-{i}-{role}"].max_steps for i in (1, 2) for role in ("pioneer", "observer")} == {5}
    # Iterations 0 to 4: A goes first; 5 to 9: A observes and B goes first. Keys say which weights, not which names.
    assert starts(plan, "rounds-2-observer") == key["rounds-1-pioneer"]
    assert starts(plan, "rounds-2-pioneer") == key["rounds-1-observer"]
    assert starts(plan, "steady-2-pioneer") == key["steady-1-pioneer"]
    assert starts(plan, "steady-2-observer") == key["steady-1-observer"]
    assert starts(plan, "rounds-1-pioneer") == starts(plan, "rounds-1-observer") == key["speaker"]
    partner = {
        name: plan.step(name).identity["inputs"][port]["key"]
        for name, port in (("rounds-2-pioneer", PIONEER), ("rounds-2-observer", OBSERVER))
    }
    assert partner == {"rounds-2-pioneer": key["rounds-1-pioneer"], "rounds-2-observer": key["rounds-1-observer"]}


@pytest.mark.parametrize("profile", ["tiny", "full"])
def test_ppo_alone_has_the_same_iterations_and_the_same_anchor(profile):
    recipe = load_recipe(RECIPE, profile=profile)
    rounds = [stage for name, stage in recipe.stages.items() if name.startswith("rounds-") and "pioneer" in name]
    alone = recipe.stages["alone"]
    assert alone.max_steps == sum(stage.max_steps for stage in rounds)
    for stage in (alone, *rounds):
        assert (stage.reference, [use.use for use in stage.loss_terms], stage.prompts) == (
            "speaker",
            ["kl"],
            "exercises",
        )
    assert [use.use for use in alone.rewards] == ["answers.exact"]


def test_exercises_for_observers_are_wrong_at_the_given_rate():
    rows = [row(str(i), f"{i} + 2 =", str(i + 2)) for i in range(300)]
    made = second_opinions(of=lambda: rows, seed=1, error_rate=0.4)
    shown = [r["prompt"][0]["content"].partition(" = ")[2].partition(";")[0] for r in made]
    wrong = np.mean([s != r["answer"] for s, r in zip(shown, made, strict=True)])
    assert wrong == pytest.approx(0.4, abs=0.06)
    assert len({r["id"] for r in made} | {r["id"] for r in rows}) == 600
