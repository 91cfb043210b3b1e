"""Reward functions with TRL's and verl's signatures, called as they are."""

import json

import pytest

from learning.lookup import bind
from learning.samples.sample import Sample
from learning.sampling.placed_rewards import Placed, Scorer
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.use import RewardUse

CODE = """
def accuracy(prompts, completions, solution, **kwargs):
    SEEN.append((prompts, completions, solution, sorted(kwargs), kwargs.get("bonus")))
    return [float(answer in text) for answer, text in zip(solution, completions, strict=True)]

def by_messages(prompts, completions, answer):
    assert all(prompt[0]["role"] == "user" for prompt in prompts)
    return [float(c[0]["content"] == a) for c, a in zip(completions, answer, strict=True)]

def needs_more(completions, missing):
    return [0.0] * len(completions)

def compute_score(data_source, solution_str, ground_truth, extra_info=None, scale=1.0):
    return {"score": scale * (solution_str == ground_truth), "of": data_source, "index": extra_info["index"]}

def plain_score(solution_str, ground_truth):
    return solution_str == ground_truth

async def patient(completions, answer, log_metric, **kwargs):
    log_metric("right", 1.0)
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]

def compute_scores(data_sources, solution_strs, ground_truths, extra_infos, scale=1.0):
    SEEN.append((data_sources, extra_infos))
    right = [text == truth for text, truth in zip(solution_strs, ground_truths, strict=True)]
    return [{"score": scale * right[0]}, float(right[1])]

def needs_tokens(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, solution, **kwargs):
    log_extra("answer", solution)
    log_metric("share", 0.5)
    done = trainer_state.global_step / trainer_state.max_steps
    return [None if len(ids) > 3 else len(ids) + done for ids in completion_ids]

async def compute_slowly(data_source, solution_str, ground_truth, extra_info):
    extra_info["seen"] = True
    return {"score": float(solution_str == ground_truth)}

def forgets_the_score(solution_str, ground_truth):
    return {"acc": 1.0}

SEEN = []
"""
ROWS = [
    {
        "prompt": [{"role": "user", "content": f"1+{i}?"}],
        "answer": str(1 + i),
        "family": "sums",
        "metadata": json.dumps({"solution": str(1 + i), "data_source": "sums", "extra_info": {"index": i}}),
    }
    for i in range(2)
]


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    name = f"foreign_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def score(use, completions):
    return bind(RewardUse.model_validate(use)).ask(0, {"rows": ROWS, "completions": completions})


def test_a_function_of_trl_gets_prompts_completions_and_columns(module):
    use = {"use": "foreign.trl", "function": f"{module}:accuracy", "kwargs": {"bonus": 2}}
    assert score(use, ["it is 1", "it is 1"]) == [1.0, 0.0]
    seen = __import__(module).SEEN[0]
    assert seen[:3] == (["1+0?", "1+1?"], ["it is 1", "it is 1"], ["1", "2"])
    assert seen[3:] == (["answer", "bonus", "data_source", "extra_info", "family", "log_extra", "log_metric"], 2)


def test_conversational_data_are_messages(module):
    use = {"use": "foreign.trl", "function": f"{module}:by_messages", "as_messages": True}
    assert score(use, ["1", "3"]) == [1.0, 0.0]


def test_a_column_that_the_data_lack_is_named(module):
    with pytest.raises(StepError, match="takes `missing`, which the data lack; columns: answer, completions"):
        score({"use": "foreign.trl", "function": f"{module}:needs_more"}, ["", ""])


def test_a_function_of_verl_scores_one_completion_at_a_time(module):
    use = {"use": "foreign.verl", "function": f"{module}:compute_score", "kwargs": {"scale": 0.5}}
    assert score(use, ["1", "1"]) == [0.5, 0.0]
    assert score({"use": "foreign.verl", "function": f"{module}:plain_score"}, ["1", "2"]) == [True, True]


def test_a_recipe_names_the_function_and_its_key_covers_the_code(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("""
stages:
  base: {kind: init}
  prompts: {kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 4}]}
  rl: {kind: rl, algorithm: grpo, model: base, prompts: prompts, max_steps: 1,
       rewards: [{use: foreign.trl, function: "mine:accuracy"}]}
""")
    assert ("mine", "accuracy") in load_recipe(recipe).code("rl")
    recipe.write_text(recipe.read_text().replace("mine:accuracy", "mine:acuracy"))
    with pytest.raises(Exception, match="no function `acuracy`"):
        load_recipe(recipe)


def test_a_function_of_trl_may_be_async_and_log(module):
    assert score({"use": "foreign.trl", "function": f"{module}:patient"}, ["1", "1"]) == [1.0, 0.0]


def test_a_function_of_trl_gets_tokens_and_the_state_of_the_trainer_in_rl(module):
    samples = [Sample(row, 0, "policy", [1], [5] * n, None, "stop", "x") for row, n in zip(ROWS, (2, 4), strict=True)]
    supplies = {"rows": ROWS, "completions": ["x", "x"], "samples": samples, "max_steps": 10}
    use = {"use": "foreign.trl", "function": f"{module}:needs_tokens"}
    assert bind(RewardUse.model_validate(use)).ask(5, supplies | {"step": 5}) == [2.5, None]
    with pytest.raises(StepError, match="needs_tokens takes `completion_ids`, which only samples of an `rl`"):
        score(use, ["1", "1"])


def test_workers_of_rewards_get_the_tokens_too(module):
    samples = [Sample(row, 0, "policy", [1], [5] * n, None, "stop", "x") for row, n in zip(ROWS, (2, 3), strict=True)]
    supplies = {"rows": ROWS, "completions": ["x", "x"], "samples": samples, "max_steps": 10, "step": 5}
    reward = bind(RewardUse.model_validate({"use": "foreign.trl", "function": f"{module}:needs_tokens"}))
    assert Placed(reward, TwoWorkers(), each=True).answered(5, supplies).scores == [2.5, 3.5]


class TwoWorkers:
    """Two workers that are functions of this process."""

    remotes = (None, None)

    def map(self, method, calls):
        assert len(calls) == 2
        return [Scorer().score(*call) for call in calls]


def test_a_function_of_verl_may_be_async_and_gets_a_map_of_its_own(module):
    rows = [{**row, "metadata": "{}"} for row in ROWS]
    reward = bind(RewardUse.model_validate({"use": "foreign.verl", "function": f"{module}:compute_slowly"}))
    assert reward.ask(0, {"rows": rows, "completions": ["1", "1"]}) == [1.0, 0.0]
    use = {"use": "foreign.verl", "function": f"{module}:forgets_the_score"}
    with pytest.raises(StepError, match="the map that it returns has no `score`; its keys: acc"):
        score(use, ["1", "1"])


def test_a_function_of_verl_for_a_batch_is_called_once(module):
    use = {"use": "foreign.verl", "function": f"{module}:compute_scores", "kwargs": {"scale": 3}}
    assert score(use, ["1", "1"]) == [3, 0.0]
    assert __import__(module).SEEN[-1:] == [(["sums", "sums"], [{"index": 0}, {"index": 1}])]
