"""Rewards called as their step calls them, before a run."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flows.planning.own_rewards import verify_own_rewards
from flows.planning.reward_samples import sample_rewards
from flows.planning.reward_tests import read_tests, score_reward_tests
from flows.planning.reward_tests_table import make_distribution_table, make_reward_table
from learning.evaluation.reward_distribution import describe_rewards
from learning.evaluation.reward_probes import Scored
from lineage.layout import Layout
from schemas.errors import PlanError, RecipeError
from schemas.package import ROOT
from schemas.recipe.load import load_recipe

HERE = Layout(Path(__file__).parent)

RECIPE = """name: r
stages:
  base: {kind: init}
  problems:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, size: 9, split: train}]
  better: {kind: rl, model: base, prompts: problems, algorithm: grpo, max_steps: 1, rewards: [REWARD]}
"""
OWN = """
import ctypes
import faulthandler
import os
import signal
from pathlib import Path
def leaky(rows, completions):
    Path("seen.txt").write_text(f"{len(rows)} {os.getppid()}")
    return [float(any(c.isalnum() for c in text)) for text in completions]
def nan(completions):
    return [float("nan")] * len(completions)
def wrong(completions):
    return [len(text) / missing for text in completions]
def asks(completions, sampler):
    return [nothing]
def endless(completions):
    while True:
        try:
            len(completions) / 0
        except Exception:
            pass
def stuck(completions):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    while True:
        pass
def exits(completions, *, code: int = 0):
    os._exit(code)
def crashes(completions):
    faulthandler.disable()  # of pytest, which prints pages
    ctypes.string_at(0)
"""

# Rewards are called in a forked process only where no other threads run, which other tests may have left in this one.
CHECK = """
import json
import sys
from pathlib import Path

from flows.planning import apart, reward_tests
from flows.planning.own_rewards import verify_own_rewards
from lineage.layout import Layout
from schemas.errors import PosttrainError
from schemas.recipe.load import load_recipe

apart.GRACE, (name, limit, *texts) = 0.5, json.loads(sys.argv[1])
reward_tests.LONGEST_CALL = limit
messages = []
for text in texts:
    Path("r.yaml").write_text(text)
    recipe, layout = load_recipe(Path("r.yaml")), Layout(Path())
    try:
        if name == "verify":
            verify_own_rewards(recipe, layout)
        else:
            reward_tests.score_reward_tests(recipe, "better", None, 1, layout)
        messages.append("")
    except PosttrainError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""


def check_alone(name, rewards, folder, limit=60.0):
    """Return the messages of checks of rewards in a process of their own, empty for those that pass."""
    (folder / "rewards_on_trial.py").write_text(OWN)
    (folder / "check.py").write_text(CHECK)
    texts = [RECIPE.replace("REWARD", reward) for reward in rewards]
    result = subprocess.run(
        [sys.executable, folder / "check.py", json.dumps([name, limit, *texts])],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(result.stdout)


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards_on_trial.py").write_text(OWN)

    def load(reward):
        sys.modules.pop("rewards_on_trial", None)
        (tmp_path / "r.yaml").write_text(RECIPE.replace("REWARD", reward))
        return load_recipe(tmp_path / "r.yaml")

    return load


def test_the_answers_of_the_problems_are_good_and_cheats_are_not(load):
    results = score_reward_tests(load("answers.exact"), "better", None, 2, HERE)
    assert all(result.ok for result in results)
    assert len({result.row for result in results}) == 2
    leaky = score_reward_tests(load('"rewards_on_trial:leaky"'), "better", None, 1, HERE)
    assert {result.kind for result in leaky if not result.ok} == {"prompt copied", "repeated", "format alone"}


def test_tests_of_a_file_are_scored(load, tmp_path):
    file = tmp_path / "tests.yaml"
    file.write_text("- {prompt: 1+2=, answer: 3, good: [3, '3.'], bad: ['4'], metadata: {a: 1}}")
    results = score_reward_tests(load("answers.exact"), "better", file, 1, HERE)
    assert [(result.kind, result.score) for result in results[:3]] == [("good", 1.0), ("good", 1.0), ("bad", 0.0)]
    assert json.loads(read_tests(file)[0].row["metadata"]) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "must be a list of tests"),
        ("- 3", "test 1: must be a map"),
        ("- {goods: [1]}", "unknown key `goods`; did you mean `good`?"),
        ("- {good: []}", "must name at least one completion"),
        ("- {good: [[1]]}", "`good` must be a list of texts"),
        ("- {good: [", "while parsing"),
    ],
)
def test_wrong_tests_are_refused(tmp_path, text, message):
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(PlanError, match=message.replace("?", r"\?")):
        read_tests(tmp_path / "t.yaml")


def test_what_cannot_be_tested_is_refused_by_name(load):
    with pytest.raises(PlanError, match="base: this step has no rewards"):
        score_reward_tests(load("answers.exact"), "base", None, 1, HERE)
    with pytest.raises(PlanError, match=r"no step `beter`.*did you mean `better`"):
        score_reward_tests(load("answers.exact"), "beter", None, 1, HERE)
    with pytest.raises(PlanError, match="reward rewards_on_trial:asks needs sampler"):
        score_reward_tests(load('"rewards_on_trial:asks"'), "better", None, 1, HERE)


def test_own_rewards_are_called_on_two_problems_before_a_run(tmp_path):
    names = ("leaky", "asks", "nan", "wrong")
    messages = check_alone("verify", [f'"rewards_on_trial:{name}"' for name in names], tmp_path)
    assert messages[:2] == ["", ""]
    assert re.search(r"r.yaml:8:\d+: stages.better.rewards.0: .*its score is nan", messages[2])
    assert re.search(r"raises for every one of 2 completions.*NameError", messages[3])
    rows, parent = (tmp_path / "seen.txt").read_text().split()
    assert (rows, int(parent) == os.getpid()) == ("2", False)  # a child of the process that checks, not that process


TESTED = "answers.last_number], tests: [{prompt: 1+2=, answer: 3, good: [3, It is 3.], bad: [4, %s]}"


def test_tests_of_a_stage_are_scored_before_a_run_and_are_not_in_the_key(load, tmp_path):
    recipe = load(TESTED % "none")
    verify_own_rewards(recipe, HERE)
    results = score_reward_tests(recipe, "better", None, 1, HERE)
    assert [(r.kind, r.score) for r in results[:4]] == [("good", 1.0), ("good", 1.0), ("bad", 0.0), ("bad", 0.0)]
    assert recipe.settings("better") == load("answers.last_number").settings("better")


def test_a_test_that_does_not_hold_has_its_place(load):
    with pytest.raises(RecipeError, match=r"r.yaml:8:\d+: stages.better.tests.0: the bad completion '4 or 3' scores"):
        verify_own_rewards(load(TESTED % "4 or 3"), HERE)
    with pytest.raises(RecipeError, match=r"stages.better.tests: reward rewards_on_trial:asks needs sampler"):
        verify_own_rewards(load((TESTED % "none").replace("answers.last_number", '"rewards_on_trial:asks"')), HERE)


def test_a_reward_server_is_asked_at_the_address_of_the_environment(load, monkeypatch):
    monkeypatch.setenv("SCORES", "http://127.0.0.1:8/score")
    monkeypatch.setattr("learning.rewards.servers.Server.post", answer_with_address)
    reward = '{use: servers.http, url: "${env:SCORES}", headers: {Authorization: "${env:SCORES}"}}'
    results = score_reward_tests(load(reward), "better", None, 1, HERE)
    assert {result.score for result in results} == {float(len("http://127.0.0.1:8/score"))}


async def answer_with_address(server, client, body):
    assert client.headers["Authorization"] == server.url
    return json.dumps([len(server.url)] * len(json.loads(body)["samples"])).encode()


def test_rewards_are_scored_on_samples_of_the_model_that_the_step_starts_from(load, tiny_policy_folder, tmp_path):
    made = load("'rewards_on_trial:leaky'], num_generations: 4, max_completion_length: 3, watch: [")
    with pytest.raises(PlanError, match=r"better: its model is not made yet; first run: posttrain run .* --to base"):
        sample_rewards(made, "better", 8, Layout(tmp_path / "root"))
    text = (tmp_path / "r.yaml").read_text().replace("{kind: init}", f"path:{tiny_policy_folder}")
    (tmp_path / "r.yaml").write_text(text)
    rewards = sample_rewards(load_recipe(tmp_path / "r.yaml"), "better", 10, Layout(tmp_path / "root"))
    assert (rewards.problems, rewards.completions) == (3, 12)  # as many of each problem as in training
    assert sum(one.count for one in rewards.bins) == 12
    assert {one.low for one in rewards.bins} <= {0.0, 1.0}


def test_one_of_a_thing_is_singular():
    row = Scored("1", "good", "2", 1.0, ok=True)
    one = make_distribution_table("better", describe_rewards([[1.0]], 0))
    more = make_distribution_table("better", describe_rewards([[1.0, 0.0], [0.5, 0.5]], 0))
    assert one.title == "Rewards of better on 1 completion of 1 problem by its model"
    assert more.title == "Rewards of better on 4 completions of 2 problems by its model"
    titles = [make_reward_table("better", rows).title for rows in ([row], [row] * 2, [row, replace(row, ok=False)])]
    verdicts = ["the only test holds", "all 2 tests hold", "1 of 2 tests fails"]
    assert titles == [f"Rewards of better: {verdict}" for verdict in verdicts]


def test_samples_of_a_step_without_a_model_are_refused(load, tmp_path):
    with pytest.raises(PlanError, match="problems: --samples needs a stage of kind rl or synthesize with `model`"):
        sample_rewards(load("answers.exact"), "problems", 8, Layout(tmp_path / "root"))


@pytest.mark.parametrize("tests", [False, True])
def test_a_reward_that_never_returns_is_named(load, monkeypatch, tests):
    """Also one that catches all errors, and in a stage's own tests; the caller's timer goes on."""
    monkeypatch.setattr("flows.planning.reward_tests.LONGEST_CALL", 0.2)
    before = signal.getsignal(signal.SIGALRM)
    own = '"rewards_on_trial:endless"'
    with pytest.raises(RecipeError, match=r"did not return within 0\.2 s") as caught:
        verify_own_rewards(load(f"{own}], tests: [{{good: [x]}}" if tests else own), HERE)
    assert caught.value.problems[0].path == "stages.better.rewards.0"
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_reward_that_cannot_be_interrupted_is_named(tmp_path):
    (message,) = check_alone("verify", ['"rewards_on_trial:stuck"'], tmp_path, limit=0.2)
    assert "reward rewards_on_trial:stuck did not return, and Python could not stop it" in message


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ('"rewards_on_trial:exits"', r"ended the process that called it \(exit code 0\).*look for os._exit"),
        ('{use: "rewards_on_trial:exits", code: 7}', r"ended the process that called it \(exit code 7\)"),
        ('"rewards_on_trial:crashes"', r"crashed the process that called it \(SIGSEGV\)"),
    ],
)
def test_a_reward_that_ends_its_process_is_named(tmp_path, reward, message):
    called, tested = check_alone("verify", [reward, f"answers.exact, {reward}], tests: [{{good: [x]}}"], tmp_path)
    assert re.search(r"stages.better.rewards.0: reward rewards_on_trial:\w+ " + message, called)
    assert re.search("stages.better.tests: a reward of these tests " + message, tested)
    (scored,) = check_alone("score", [reward], tmp_path)
    assert re.search("a reward of better " + message, scored)
