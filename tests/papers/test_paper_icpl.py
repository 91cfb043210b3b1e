"""ICPL: functions written as code, policies trained with each, an oracle's best and worst in the next prompt.

Not shown: a real language model, human raters.
"""

import json
import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy, load_control_policy
from learning.control.rounds.reward_rounds import Oracle, coded_reward, read_function, record_episodes
from learning.control.stepping.spaces import Spaces
from learning.data.rows import read_rows, write_rows
from learning.lookup import Inner, bind
from learning.toy_tasks.reward_author import read_terms, reward_author
from schemas.control import NetworkSettings, SegmentDuelUse
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks.context import Context

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes/papers/icpl.yaml")
STAGES = RECIPE.stages
NAMES = ["cart_position", "cart_velocity", "pole_angle", "pole_velocity", "push"]
SOURCES = [f"def reward({', '.join(NAMES)}):\n    return 0.0 + {value} * abs(pole_angle)" for value in (1, 2, 3)]
WEIGHTS = [[0.0, 0.0, 0.0, 0.0], [0.0, 0.5, 5.0, 1.0], [0.0, 0.0, -5.0, 0.0]]
"""Pushes by position, speed, angle, its speed: always to the left, a good one, the worst."""


def worse(first, second):
    """The opposite of the recipe's oracle."""
    return float(first.reward.sum() < second.reward.sum())


@pytest.fixture
def step(tmp_path):
    def step(name, **inputs):
        made = Context(inputs, tmp_path / name, tmp_path / name / "checkpoints", seed=1)
        made.folder.mkdir(exist_ok=True)
        return made

    return step


@pytest.fixture
def policies(tmp_path):
    """Folders of three policies that act by a weighted sum."""
    folders = {}
    for number, weights in enumerate(WEIGHTS):
        networks = Networks(Spaces(4, 2), NetworkSettings(hidden_sizes=[]))
        actor = networks.make_stochastic_actor()
        with torch.no_grad():
            for parameter in actor.parameters():
                parameter.zero_()
                if parameter.ndim == 2:
                    parameter[1] = torch.tensor(weights)
                else:
                    parameter[0] = 0.01
        folder = tmp_path / f"policy_{number}"
        folder.mkdir()
        ControlPolicy(networks.spaces, networks.settings, "make_stochastic_actor", actor).save(folder, {})
        folders[f"policy_{number}"] = folder
    return folders


@pytest.fixture
def codes(tmp_path):
    folder = tmp_path / "codes"
    folder.mkdir()
    (folder / "codes.json").write_text(json.dumps({"functions": SOURCES}))
    return folder


def call(name, context, **options):
    """Run a function of the recipe's stage, with other options."""
    use = STAGES[name].function
    return bind(use.model_copy(update=options) if options else use, "function", context.inputs)(context)


def rank(step, policies, codes, number, before, **options):
    """The ranking of a round."""
    made = step(f"ranks-{number}-{len(options)}", ranking=before, codes=codes, **policies)
    metrics = call(f"rounds-{number}-ranks", made, **options)
    return made, metrics, json.loads((made.output("result") / "ranking.json").read_text())


@pytest.fixture
def start(step):
    made = step("start")
    call("start", made)
    return made.output("result")


@pytest.mark.parametrize("reverse", [False, True])
def test_the_next_prompt_has_the_best_and_the_worst_in_the_oracles_order(reverse, step, policies, codes, start):
    """Policy 1 balances the longest and 2 the shortest; an oracle that likes falls turns the sources round."""
    options = {"by": "tests.papers.test_paper_icpl:worse"} if reverse else {}
    made, metrics, ranking = rank(step, policies, codes, 1, start, **options)
    best, worst = (SOURCES[2], SOURCES[1]) if reverse else (SOURCES[1], SOURCES[2])
    assert (ranking["best"], ranking["worst"]) == (best, worst)
    assert (metrics["best_return"] < metrics["worst_return"]) == reverse
    asked = step(f"asked-{reverse}", ranking=made.output("result"))
    call("rounds-2-requests", asked)
    rows = read_rows(asked.output("prompts"), "prompts")
    for row in rows:
        text = row["prompt"][0]["content"]
        assert re.findall(r"```python\n(.*?)\n```", text, re.DOTALL)[1:] == [best, worst]
        assert text.index("liked best") < text.index(best) < text.index("liked least") < text.index(worst)
    assert len({row["id"] for row in rows}) == 8
    alone = step(f"alone-{reverse}", ranking=made.output("result"))
    call("unranked-2-requests", alone)
    texts = [row["prompt"][0]["content"] for row in read_rows(alone.output("prompts"), "prompts")]
    assert not any(source in text for text in texts for source in SOURCES)
    assert all(STAGES["rounds-1-requests"].function.options["task"] in text for text in texts)


def test_queries_are_counted_over_rounds_and_the_best_of_all_is_kept(step, policies, codes, start):
    """Three policies are ranked by three comparisons; the second round compares its best with the first's, too."""
    first, metrics, ranking = rank(step, policies, codes, 1, start)
    assert metrics["queries"] == ranking["queries"] == 3
    weaker = dict.fromkeys(policies, policies["policy_2"]) | {"policy_1": policies["policy_0"]}
    second, metrics, ranking = rank(step, weaker, codes, 2, first.output("result"))
    assert metrics["queries"] == 3 + 3 + 1
    assert (ranking["round"], ranking["best"], ranking["kept"]) == (2, SOURCES[1], SOURCES[1])
    third, metrics, _ = rank(step, policies, codes, 3, second.output("result"))
    assert metrics["queries"] == 7 + 4
    for made in (first, second, third):
        actor = load_control_policy(made.output("model")).actor
        assert [p[1].tolist() for p in actor.parameters() if p.ndim == 2] == [WEIGHTS[1]]


def test_the_oracle_sees_the_worlds_own_reward_from_the_same_starts(policies):
    def make():
        return gymnasium.make("CartPole-v1")

    shown = [record_episodes(make, folder, 3, 1) for folder in policies.values()]
    assert [one.reward.sum() for one in shown[0]] == [len(one.action) for one in shown[0]]
    for a, b in zip(shown[0], shown[1], strict=True):
        assert a.observation[0].tolist() == b.observation[0].tolist()
    oracle = Oracle(Inner(bind(SegmentDuelUse(use="higher_return")), 0, {}))
    assert oracle.prefers(shown[1], shown[0])
    assert not oracle.prefers(shown[0], shown[0])
    assert oracle.find([2, 0, 1], shown, best=True) == 1
    assert oracle.find([0, 2], shown, best=False) == 2
    assert oracle.queries == 5


def answer(text):
    return {
        "id": str(len(text)),
        "family": "rewards",
        "prompt": [{"role": "user", "content": "?"}],
        "answer": None,
        "metadata": "{}",
        "completion": [{"role": "assistant", "content": text}],
    }


def test_a_function_that_fails_is_resampled_and_never_trained_with(step):
    """Six answers: the second is no number for angles below 0, the third not allowed; 1, 4 and 5 are taken."""
    texts = [
        f"```python\n{SOURCES[0]}\n```",
        "def reward(pole_angle):\n    return log(pole_angle)",
        "def reward(pole_angle):\n    return __import__('os').getpid()",
        f"Here it is:\n```python\n{SOURCES[1]}\n```\nGood luck!",
        SOURCES[2],
        SOURCES[0],
    ]
    made = step("chat")
    write_rows(made.output("chat"), "chat", [answer(text) for text in texts])
    checked = step("checked", answers=made.output("chat"))
    metrics = call("rounds-1-codes", checked)
    assert metrics == {"functions": 3, "refused": 2}
    record = json.loads((checked.output("result") / "codes.json").read_text())
    assert record["functions"] == SOURCES
    assert [one["why"] for one in record["refused"]] == [
        "a reward is not a number from -1e+06 to 1e+06",
        "Call is not allowed",
    ]
    write_rows(made.output("few"), "chat", [answer(text) for text in texts[:3]])
    with pytest.raises(StepError, match="1 of 3 functions can be computed; ask for more; the first refused"):
        call("rounds-1-codes", step("few", answers=made.output("few")))


def test_policies_are_trained_with_what_the_functions_say(codes):
    """The world's own reward of 1 a step is not shown; function 2 pays three times the angle after the step."""
    for number in range(3):
        use = STAGES[f"rounds-1-policy_{number}"].env
        world = bind(use.model_copy(update={"codes": str(codes)}), "env", {"codes": codes})()
        world.reset(seed=3)
        observation, reward, *_ = world.step(1)
        assert reward == pytest.approx((number + 1) * abs(float(observation[2])), abs=1e-6)
    with pytest.raises(StepError, match="no function 3, the last is 2"):
        coded_reward(world=lambda: gymnasium.make("CartPole-v1"), codes=codes, number=3, names=NAMES)
    wrong = coded_reward(world=lambda: gymnasium.make("CartPole-v1"), codes=codes, number=0, names=NAMES)
    wrong.names = NAMES[:4]
    wrong.reset(seed=0)
    with pytest.raises(StepError, match="4 are given, and a step has 4 numbers of an observation and 1 of an action"):
        wrong.step(0)


def test_every_round_trains_k_policies_and_both_arms_cost_the_same():
    assert (
        sum(name.startswith("rounds-1-policy_") for name in STAGES)
        == 3
        == STAGES["rounds-1-codes"].function.options["count"]
    )
    for name, stage in STAGES.items():
        if name.startswith("rounds-"):
            other = STAGES[name.replace("rounds-", "unranked-")].model_dump()
            ours = stage.model_dump()
            for settings in (ours, other):
                (settings.get("function") or {}).pop("shows_ranking", None)
            assert json.dumps(ours, default=str) == json.dumps(other, default=str), name
    ports = {port.path: port.steps for port in RECIPE.ports("rounds-2-requests")}
    assert ports == {"inputs.ranking": ("rounds-1-ranks",)}
    assert {p.path: p.steps for p in RECIPE.ports("rounds-3-ranks")}["inputs.ranking"] == ("rounds-2-ranks",)
    assert dict(STAGES["report"].models)["ranked"] == "rounds.ranks.model"
    assert STAGES["report"].env == STAGES["given"].env


def test_the_script_changes_one_number_of_the_best_function():
    ask = {"metadata": json.dumps({"names": NAMES})}
    first = reward_author(
        {**ask, "prompt": [{"content": "```python\ndef reward(x):\n    return ...\n```"}]}, np.random.default_rng(0)
    )
    terms = read_terms(read_function([{"content": first}]), NAMES)
    assert list(terms) == ["", *NAMES]
    shown = f"```python\ndef reward(x):\n    return ...\n```{first}```python\ndef reward(y):\n    return 1\n```"
    changed = 0
    for seed in range(5):
        text = reward_author({**ask, "prompt": [{"content": shown}]}, np.random.default_rng(seed))
        after = read_terms(read_function([{"content": text}]), NAMES)
        assert sum(after[name] != terms[name] for name in terms) == 1
        changed += after[""] != terms[""]
    assert changed < 5
    broken = reward_author({**ask, "prompt": [{"content": ""}]}, np.random.default_rng(0), error_rate=1.0)
    assert "/ 0.0" in broken
    assert read_terms("def reward(x):\n    return x", NAMES) is None
