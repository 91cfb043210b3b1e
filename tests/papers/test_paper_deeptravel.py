"""DeepTravel: an itinerary is checked as a whole, then against what tools said; failed problems are sampled again.

Requests, tools, both checks and the batches are those of the recipe. Not shown: that an agent plans better for it.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from learning.environments.grounded import Environment
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.models.policy import Policy
from learning.samples.sample import History, Sample
from learning.toy_tasks.trips import is_feasible, make_cache, trips
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tests.papers.dictated import TOKENS, play

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "deeptravel.yaml"
STAGES = load_recipe(RECIPE).stages
TRAINED, EPOCHS, REPORT = STAGES["trained"], STAGES["epochs"], STAGES["report"]
REPLIES = {
    "trains": {"ham ulm": "train 8-10 30, train 12-14 20"},
    "sights": {"ulm": "zoo 11-13 5, dom 15-17 9"},
    "hotels": {"ulm": "inn 40, hut 25"},
}
CALLS = ["trains: ham ulm", "sights: ulm", "hotels: ulm"]
TRIP = {"id": "t", "prompt": [{"role": "user", "content": "ham to ulm for 80"}], "answer": None, "family": "trips"}
TRIP |= {"metadata": json.dumps({"budget": 80, "replies": REPLIES})}


@pytest.fixture
def checks(monkeypatch):
    """The answers whose parts were compared with what tools had shown."""
    made, compare = [], Environment.compare

    def note(self, answer, shown):
        made.append(answer)
        return compare(self, answer, shown)

    monkeypatch.setattr(Environment, "compare", note)
    return made


def plan(*turns, row=TRIP, **options):
    env = TRAINED.env.model_copy(update=options)
    episode = build_environment(env, {}).begin(row, 0)
    return [episode.step(turn) for turn in turns][-1].reward


@pytest.mark.parametrize(
    "itinerary",
    [
        "train 12-14 20, zoo 11-13 5, hut 25",  # the zoo before the arrival
        "train 8-10 30, zoo 9-13 5, hut 25",  # overlapping hours
        "train 8-10 30, zoo 11-13 5, inn 46",  # 81
        "train 10-8 30, zoo 11-13 5, hut 25",
        "zoo 11-13 5, train 8-10 30, hut 25",
        "train 8-10 30, zoo 11-13 5",
        "train 8-10 30, zoo 11-13 5, hut 25, hut 25",
        "somewhere nice",
        "",
    ],
)
def test_an_infeasible_itinerary_earns_nothing_and_its_details_are_not_looked_at(checks, itinerary):
    assert plan(*CALLS, itinerary) == 0.0
    assert checks == []


@pytest.mark.parametrize(
    "itinerary",
    [
        "train 8-10 29, zoo 11-13 5, hut 25",  # a price that no tool said
        "train 8-10 30, zoo 11-13 50, hut 0",
        "train 8-10 30, mill 11-13 5, hut 25",
        "train 8-10 30, zoo 11-12 5, hut 25",
    ],
)
def test_a_feasible_one_with_invented_details_fails_at_the_second_check(checks, itinerary):
    assert is_feasible(itinerary, 80)
    assert plan(*CALLS, itinerary) == 0.0
    assert checks == [itinerary]


def test_a_clean_one_earns_everything(checks):
    assert plan(*CALLS, "train 8-10 30, zoo 11-13 5, hut 25") == 1.0
    assert plan(*CALLS, "train 12-14 20, dom 15-17 9, inn 40") == 1.0
    assert plan(*CALLS[:2], "train 8-10 30, zoo 11-13 5, hut 25") == 0.0  # no tool has named the hotel
    assert len(checks) == 3


def test_whether_a_wrong_detail_costs_everything_or_its_part_is_a_setting():
    assert TRAINED.env.options.get("share", False) is False
    wrong = "train 8-10 30, zoo 11-13 5, hut 20"
    assert plan(*CALLS, wrong) == 0.0
    assert plan(*CALLS, wrong, share=True) == pytest.approx(2 / 3)
    assert plan(*CALLS, "train 8-10 30, zoo 9-13 5, hut 25", share=True) == 0.0


def test_every_script_is_right_and_some_combinations_do_not_fit():
    """By an independent count of all combinations of what the tools offer."""
    rows = bind(STAGES["requests"].problems[0])()
    for row in rows[::5]:
        notes = json.loads(row["metadata"])
        assert plan(*notes["script"], row=row) == 1.0
        offers = [notes["replies"][c.split(": ")[0]][c.split(": ")[1]].split(", ") for c in notes["script"][:3]]
        fits = []
        for train, sight, hotel in [(t, s, h) for t in offers[0] for s in offers[1] for h in offers[2]]:
            arrives, begins = int(train.split()[1].split("-")[1]), int(sight.split()[1].split("-")[0])
            price = sum(int(part.split()[-1]) for part in (train, sight, hotel))
            fits.append(arrives <= begins and price <= notes["budget"])
            assert is_feasible(", ".join((train, sight, hotel)), notes["budget"]) == fits[-1]
        assert 0 < sum(fits) < 8


def test_equal_calls_get_equal_bytes():
    row = bind(STAGES["requests"].problems[0])()[0]
    script = json.loads(row["metadata"])["script"][:3]
    seen = []
    for seed in (0, 1):
        episode = build_environment(TRAINED.env, {}).begin(row, seed)
        seen += [[episode.step(turn).observation.encode() for turn in (*script, *script)]]
    assert seen[0] == seen[1]
    assert seen[0][:3] == seen[0][3:]
    assert make_cache(0) == make_cache.__wrapped__(0)
    assert make_cache(0) != make_cache(1)


def visit(history, row, *scores):
    samples = [Sample(row, 0, "policy", [1], [2], [-1.0], "stop", "", scores={"r": s}) for s in scores]
    history.add(samples)


def list_batches(stage, rows, history, steps):
    sampler, state = bind(stage.prompt_sampler), {}
    batches = []
    for step in range(steps):
        asked = {"rows": rows, "num_groups": 4, "n": 8, "seed": 0, "step": step, "history": history, "state": state}
        requests = sampler.ask(step, asked | {"rng": np.random.default_rng(step)})
        assert {request.n for request in requests} == {8}
        batches.append([request.row["id"] for request in requests])
    return batches


def test_every_fifth_batch_draws_from_the_problems_that_failed():
    rows = [{"id": f"r{i}"} for i in range(40)]
    history = History()
    for i, row in enumerate(rows):
        if i < 30:
            visit(history, row, *((0.0, 0.0) if i % 3 == 0 else (1.0, 0.0)))
    visit(history, rows[0], 1.0, 0.0)  # it failed at first, but not at the last visit
    failed = {f"r{i}" for i in range(3, 30, 3)}
    batches = list_batches(TRAINED, rows, history, 10)
    assert [set(batch) <= failed for batch in batches] == [False] * 4 + [True] + [False] * 4 + [True]
    assert all(len(set(batch)) == 4 for batch in batches)
    assert batches[4] != batches[9]
    others = [name for step, batch in enumerate(batches) if step not in (4, 9) for name in batch]
    assert len(set(others)) == 32  # the epoch goes on where it was
    assert not any(set(batch) <= failed for batch in list_batches(EPOCHS, rows, history, 10))


def test_where_too_few_have_failed_the_epoch_goes_on():
    rows, history = [{"id": f"r{i}"} for i in range(40)], History()
    visit(history, rows[7], 0.0)
    batches = list_batches(TRAINED, rows, history, 5)
    assert batches[4][0] == "r7"
    assert len({name for batch in [*batches[:4], batches[4][1:]] for name in batch}) == 19


def test_the_reward_is_that_of_the_episode_and_the_arms_differ_in_the_sampler(tiny_policy):
    policy = Policy(tiny_policy.model, tiny_policy.tokenizer, 4 * TOKENS)
    good, bad = "train 8-10 30, zoo 11-13 5, hut 25", "train 8-10 3, zoo 11-13 5, hut 25"
    samples, _ = play(policy, TRAINED, TRIP, [[*CALLS, good], [*CALLS, bad]])
    assert [sample.reward for sample in samples] == [1.0, 0.0]
    trained, epochs = TRAINED.model_dump(), EPOCHS.model_dump()
    assert {key for key in trained if trained[key] != epochs[key]} == {"prompt_sampler"}
    assert EPOCHS.prompt_sampler.use == "uniform"
    assert REPORT.env == TRAINED.env
    trained_on = {row["id"] for row in bind(STAGES["requests"].problems[0])()}
    imitated = {key: value for key, value in STAGES["scripts"].problems[0].options["of"].items() if key != "use"}
    held_out = {row["id"] for row in bind(REPORT.tasks[0])()}
    assert not held_out & (trained_on | {row["id"] for row in trips(**imitated)})
    with pytest.raises(StepError, match="use problems of `trips`"):
        plan(*CALLS, good, row=TRIP | {"metadata": json.dumps({"replies": REPLIES})})
