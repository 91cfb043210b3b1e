"""CM2: checklists for each request of a conversation, whose rewards credit the turns of that request alone.

Turns are dictated; requests, tools, checklists, rewards and advantages are those of the recipe. Not shown: that an
assistant learns more from it.
"""

import json
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.data.chat import decode
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.models.policy import Policy
from learning.toy_tasks.appointments import TOOLS, Diary, ask
from schemas.recipe.load import load_recipe
from tests.papers.dictated import TOKENS, play

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "cm2.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
TRAINED, EPISODES, REPORT = STAGES["trained"], STAGES["episodes"], STAGES["report"]
DIARY = Diary({"ann": "417", "bob": "203"}, {"ann": "12", "bob": "30"}, {"15": True, "16": False})


def make_conversation(*requests):
    """A conversation of such requests: (kind, name, day)."""
    asked = [ask(kind, DIARY, name, day) for kind, name, day in requests]
    listed = [{"text": text, "checklist": items} for text, _, items in asked]
    about = {
        "requests": listed,
        "replies": DIARY.replies,
        "script": [turn for _, script, _ in asked for turn in script],
    }
    prompt = [{"role": "user", "content": listed[0]["text"]}]
    return {"id": "c", "prompt": prompt, "answer": None, "family": "f", "metadata": json.dumps(about)}


BOOKING = make_conversation(("book", "ann", "15"), ("number", "bob", "16"))


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer matters."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4 * TOKENS)


def walk(row, *turns):
    episode = build_environment(TRAINED.env, {}).begin(row, 0)
    return [episode.step(turn) for turn in turns]


def test_met_items_are_paid_with_their_weights():
    """Weights 0.5, 0.3, 0.2: the day is looked up, nothing is booked, and yet it says done: 0.7."""
    items = json.loads(BOOKING["metadata"])["requests"][0]["checklist"]
    assert [item["weight"] for item in items] == [0.5, 0.3, 0.2]
    assert [item.get("focus", "turn") for item in items] == ["turn", "answer", "turn"]
    assert [o.reward for o in walk(BOOKING, "free: 15", "done")] == pytest.approx([0.5, 0.2])
    assert [o.reward for o in walk(BOOKING, "free: 15", "book: ann 15", "done")] == pytest.approx([0.5, 0.3, 0.2])
    assert [o.reward for o in walk(BOOKING, "free: 15", "free: 15", "done")] == pytest.approx([0.5, 0.0, 0.2])


def test_an_item_about_a_tool_is_not_met_without_the_tools_output():
    """`booked` in the model's own words is no booking; neither is a call to which nothing was recorded."""
    assert [o.reward for o in walk(BOOKING, "it is booked")] == [0.0]
    refused = walk(BOOKING, "book: ann 16")[0]
    assert (refused.ok, refused.reward) == (False, 0.0)


def test_a_request_has_its_own_items_and_the_next_one_follows_its_answer():
    """Items of the second request are not met before the first is answered, and those of the first not after it."""
    outcomes = walk(BOOKING, "find: bob", "done", "free: 15", "find: bob", "203")
    assert [o.reward for o in outcomes] == pytest.approx([0.0, 0.2, 0.0, 0.8, 0.2])
    assert [o.kind for o in outcomes] == ["request 0"] * 2 + ["request 1"] * 3
    assert outcomes[1].observation == "number of bob?"
    assert [o.done for o in outcomes] == [False] * 4 + [True]


def test_all_kinds_of_scripts_earn_everything_and_each_tool_is_used():
    rows = bind(STAGES["conversations"].problems[0])()
    used = set()
    for row in rows[:60]:
        script = json.loads(row["metadata"])["script"]
        outcomes = walk(row, *script)
        assert sum(o.reward for o in outcomes) == pytest.approx(2.0)
        assert outcomes[-1].done
        used |= {turn.partition(":")[0] for turn in script if ":" in turn}
    assert used == set(TOOLS) == {tool.called for tool in bind_tools()}
    assert len({row["id"] for row in rows}) == len(rows) == 200


def bind_tools():
    return build_environment(TRAINED.env, {}).inner.inner.tools.values()


SAME, PARTS = ["free: 15", "book: ann 15", "done"], [["find: bob", "203"], ["find: bob", "x"], ["203"], ["x"], ["x"]]
"""The same turns for the first request, and five ways of the second, which earn 1, 0.8, 0.2, 0 and 0."""


def find_advantages(stage, samples):
    """The advantages of every turn of each episode, as an iteration computes them."""
    name = next(name for name, one in STAGES.items() if one is stage)
    algorithm = bind_algorithm(stage, {port.path: Path("p") for port in LOADED.ports(name)})
    batch = forest(samples)
    values_T = with_advantages(algorithm, batch, 0, states={}, rows=[s.row for s in samples]).sampled("advantage")
    found = []
    for path in range(len(samples)):
        own_T, turn_T = values_T[batch.path_T == path], batch.sampled("turn")[batch.path_T == path]
        per_turn = [own_T[turn_T == turn].unique() for turn in turn_T.unique()]
        assert all(len(values) == 1 for values in per_turn)
        found.append([float(values[0]) for values in per_turn])
    return found


def test_equal_first_requests_get_nothing_and_the_second_ones_their_differences(policy):
    samples, _ = play(policy, TRAINED, BOOKING, [[*SAME, *end] for end in PARTS])
    earned = [1.0, 0.8, 0.2, 0.0, 0.0]
    assert [s.reward for s in samples] == pytest.approx([1 + e for e in earned])
    found = find_advantages(TRAINED, samples)
    assert [turns[:3] for turns in found] == [[0.0] * 3] * 5
    value = torch.tensor(earned, dtype=torch.float64)
    normal = (value - value.mean()) / (value.std(correction=0) + 1e-6)
    for turns, expected in zip(found, normal.tolist(), strict=True):
        assert turns[3:] == pytest.approx([expected] * len(turns[3:]))
        assert abs(expected) > 0.3
    for turns in find_advantages(EPISODES, samples):
        assert turns[0] == turns[-1] != 0.0


def test_a_request_that_some_episodes_did_not_reach_is_compared_among_the_others(policy):
    """The first episode asks for nothing more; its turns have the kind of the first request alone."""
    samples, _ = play(policy, TRAINED, BOOKING, [["done", "203"], ["x", "203"], ["x", "x"]])
    found = find_advantages(TRAINED, samples)
    first, second = torch.tensor([0.2, 0.0, 0.0]).double(), torch.tensor([0.2, 0.2, 0.0]).double()
    for at, values in enumerate((first, second)):
        normal = (values - values.mean()) / (values.std(correction=0) + 1e-6)
        assert [turns[at] for turns in found] == pytest.approx(normal.tolist())


def test_only_what_the_assistant_wrote_is_trained(policy):
    """The gradient at results and requests is none: they have no place among the sampled tokens."""
    samples, _ = play(policy, TRAINED, BOOKING, [[*SAME, *PARTS[0]]])
    (sample,), batch = samples, forest(samples)
    own = decode(policy.tokenizer, [t for t, o in zip(sample.completion_ids, sample.own, strict=True) if o])
    assert "number of bob?" not in own
    assert "booked" not in own
    assert batch.path_T.shape[0] == sum(sample.own)


def test_the_arms_differ_in_the_advantage_alone():
    trained, episodes = (stage.model_dump() for stage in (TRAINED, EPISODES))
    assert {key for key in trained if trained[key] != episodes[key]} == {"advantage"}
    assert [part["use"] for part in episodes["advantage"]] == ["center", "scale"]
    assert REPORT.env == TRAINED.env
    assert dict(REPORT.models) == {"start": "cold_start", "trained": "trained", "episodes": "episodes"}


def test_lessons_show_the_tools_real_answers_and_tests_are_others():
    (use,) = STAGES["lessons"].filters
    (turns,) = STAGES["scripts"].problems
    keep, rows = bind(use), bind(turns)()
    row = next(row for row in rows if row["id"].endswith(".1"))
    assert keep(row)
    forged = [*row["prompt"][:-1], {"role": "user", "content": "booked"}]
    assert not keep(row | {"prompt": forged})
    reported = {row["id"] for row in bind(REPORT.tasks[0])()}
    assert not reported & {row["id"] for row in bind(STAGES["conversations"].problems[0])()}
    assert not reported & {row["id"].partition(".")[0] for row in rows}
