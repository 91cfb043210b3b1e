"""Searches in states as slots of synthesis and evaluation, on text games and an interrupted sampling."""

import json
from functools import partial

import numpy as np
import pytest

from learning.data.chat import encode_completion
from learning.data.row_journal import RowJournal
from learning.evaluation.asking import Asking, run_solver
from learning.evaluation.sampled_answers import AnswerSample, sample_rows
from learning.lookup import bind
from learning.problems.text_games import text_games
from learning.rewards.plans import parse_plan
from learning.samples.engine_protocol import Generation, Sampling
from learning.text_game.rows import replay
from learning.text_game.solver import solve
from learning.text_game.world import list_actions
from learning.toy_tasks.environments import form, guess
from learning.toy_tasks.forms import forms
from schemas.evaluation_slots import SolverUse
from schemas.stages.synthesize import Synthesize
from schemas.use import RewardUse, SearchUse
from tasks.synthesize import accept_samples, make_pairs

GAME = {"use": "text_game", "max_turns": 8}
SEARCHES = [
    {"use": "state_mcts", "simulations": 40},
    {"use": "state_beam", "width": 6},
    {"use": "state_best_first", "expansions": 40},
]
STAGE = {"kind": "synthesize", "model": "m", "prompts": "p"}


@pytest.fixture(scope="module")
def games():
    """Games that take two or three turns."""
    return text_games(size=4, split="train", turns=[2, 3], rooms=3, items=2, holders=2, crafts=False, seed=5)


def propose(rows):
    """Propose four possible turns at random, one that is cut and one that is refused; by the id of the row."""
    groups = []
    for row in rows:
        rng = np.random.default_rng(list(row["id"].encode()))
        actions = list(list_actions(*replay(row)))
        texts = [actions[int(rng.integers(len(actions)))] for _ in range(4)]
        groups.append(
            [*(AnswerSample(text, "stop") for text in texts), AnswerSample("go", "length"), AnswerSample("fly", "stop")]
        )
    return groups


def refuse(rows, texts):
    """Fail: without `guidance` the stage's rewards are not asked."""
    raise AssertionError


@pytest.mark.parametrize("use", SEARCHES, ids=lambda use: use["use"])
def test_what_a_search_finds_solves_the_game_and_becomes_lessons(use, games):
    search = bind(SearchUse.model_validate(use | {"env": GAME}), "search", {})
    rows = search(games, propose, refuse)
    stage = Synthesize.model_validate(STAGE | {"min_reward": 1.0})
    lessons = accept_samples(stage, rows)
    solved = {row["id"].partition("/")[0] for row in rows if row["score"] == 1.0}
    assert len(solved) >= 2
    for name in solved:
        assert {row["score"] for row in rows if row["id"].partition("/")[0] == name} == {1.0}
        path = [row for row in lessons if row["id"].partition("/")[0] == name]
        *before, last = path
        world, state = replay(last)
        assert solve(world, state) == [last["text"]]  # one turn is left, and this is it
        for row, later in zip(before, path[1:], strict=True):
            assert later["prompt"][: len(row["prompt"])] == row["prompt"]
            assert later["prompt"][len(row["prompt"])] == {"role": "assistant", "content": row["text"]}


def test_siblings_become_pairs_of_one_state(games):
    search = bind(SearchUse.model_validate(SEARCHES[0] | {"env": GAME, "returns": "tree"}), "search", {})
    stage = Synthesize.model_validate(STAGE | {"emit": "preference_pairs", "min_margin": 0.2})
    rows = search(games, propose, refuse)
    pairs = make_pairs(stage, rows)
    assert len(pairs) >= 2
    values = {(row["id"], row["text"]): row["score"] for row in rows}
    assert {"fly", "go"} & {text for _, text in values} == {"fly"}  # `go` was cut by the length limit
    for pair in pairs:
        scores = [values[pair["id"], pair[side][0]["content"]] for side in ("chosen", "rejected")]
        assert pair["margin"] == pytest.approx(scores[0] - scores[1])
        assert pair["margin"] >= 0.2
        siblings = [score for (name, _), score in values.items() if name == pair["id"]]
        assert scores == [max(siblings), min(siblings)]


class Speaker:
    """An engine whose text depends on the random stream alone; it fails when its patience ends."""

    def __init__(self, tokenizer, patience=10**6):
        self.tokenizer, self.patience, self.asked = tokenizer, patience, 0

    def generate(self, requests, sampling):
        """Return a digit for each completion."""
        self.asked += sum(request.n for request in requests)
        if self.asked > self.patience:
            raise KeyboardInterrupt
        return [[self._say(request.seed + request.first + i) for i in range(request.n)] for request in requests]

    def _say(self, seed):
        digit = str(int(np.random.default_rng(seed).integers(10)))
        ids = encode_completion(self.tokenizer, [{"role": "assistant", "content": digit}])
        return Generation(ids, [0.0] * len(ids), "stop")


def test_a_search_that_was_killed_goes_on_with_the_same_result_and_asks_no_turn_again(tmp_path, tiny_policy):
    problems = [{"id": n, "prompt": [{"role": "user", "content": "guess"}], "answer": n, "family": "f"} for n in "37"]
    use = {"use": "state_mcts", "simulations": 6, "env": {"use": "guess", "max_turns": 3}, "returns": "tree"}
    search = bind(SearchUse.model_validate(use), "search", {})

    def run(engine, journal):
        how = {"n": 2, "seed": 4, "sampling": Sampling(), "on_progress": lambda *_: None, "journal": journal}
        return search(problems, partial(sample_rows, engine, tiny_policy.tokenizer, **how), refuse)

    whole = Speaker(tiny_policy.tokenizer)
    expected = run(whole, None)
    first, second = Speaker(tiny_policy.tokenizer, 11), Speaker(tiny_policy.tokenizer)
    with RowJournal(tmp_path / "sampled.jsonl") as journal, pytest.raises(KeyboardInterrupt):
        run(first, journal)
    with RowJournal(tmp_path / "sampled.jsonl") as journal:
        assert run(second, journal) == expected
        assert len(journal) * 2 == whole.asked
    assert 0 < second.asked < whole.asked


@pytest.mark.parametrize("use", SEARCHES, ids=lambda use: use["use"])
def test_a_solver_answers_with_a_plan_that_the_reward_replays(use, tiny_policy):
    problems = [{"id": n, "prompt": [{"role": "user", "content": "guess"}], "answer": n, "family": "f"} for n in "37"]
    env = {"use": "guess", "max_turns": 4}
    solver = bind(SolverUse.model_validate(use | {"env": env, "candidates": 3}), "solver", {})
    asking = Asking(Speaker(tiny_policy.tokenizer), tiny_policy.tokenizer, Sampling(), seed=1)
    plans = [sample.text for group in run_solver(solver, asking, problems, 2) for sample in group]
    assert len(plans) == 4
    rows = [row for row in problems for _ in range(2)]
    reward = bind(RewardUse.model_validate({"use": "plans.replayed", "env": env}), "rewards.0", {})
    scores = reward(rows, plans)
    assert scores == [
        float(bool(plan) and plan[-1] == row["answer"]) for plan, row in zip(map(json.loads, plans), rows, strict=True)
    ]
    assert sum(scores) >= 2


@pytest.mark.parametrize("text", ["", "3", '{"a": 1}', "[1]", '["3", 4]', "[" * 10**5, "9" * 10**5, '["3"'])
def test_a_text_that_is_no_plan_has_no_turns(text):
    assert parse_plan(text) == []


def test_a_plan_is_played_up_to_its_end_and_the_most_turns():
    row = {"id": "r", "prompt": [], "answer": "3"}
    for turns, most, expected in ((["1", "3"], 2, 1.0), (["1", "3"], 1, 0.0), (["3", "3"], 8, 1.0), ([], 8, 0.0)):
        use = RewardUse.model_validate({"use": "plans.replayed", "env": {"use": "guess", "max_turns": most}})
        assert bind(use, "rewards.0", {})([row], [json.dumps(turns)]) == [expected]


def test_environments_go_on_from_what_they_saved():
    row = {"id": "r", "answer": "5"}
    game = guess.Environment(cost=0.25).begin(row, 0)
    game.step("1")
    saved = json.loads(json.dumps(game.save()))
    other = guess.Environment(cost=0.25).begin(row, 0)
    other.restore(saved)
    assert other.step("5") == game.step("5")
    (problem,) = forms(size=1, split="train", turns=[5])
    filling = form.Environment().begin(problem, 0)
    for element in filling.form.goal.values():
        filling.step(element)
    saved = json.loads(json.dumps(filling.save()))
    other = form.Environment().begin(problem, 0)
    other.restore(saved)
    assert other.step("next") == filling.step("next")
    assert (saved["page"], filling.form.page, other.form.page) == (0, 1, 1)
    assert saved["values"] == other.form.values != {}
