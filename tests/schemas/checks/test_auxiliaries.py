"""Networks beside a policy: what cannot be meant is refused at its place, what is published is an output."""

import pytest
import yaml

from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

HEAD = """name: tried
stages:
  base: {kind: init}
  problems: {kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: gcd, size: 9, split: train}]}
  rl:
    kind: rl
    model: base
    prompts: problems
    rewards: [answers.exact, {use: formats.matches, pattern: x}]
    max_steps: 2
"""
POTENTIAL = [{"use": "potential", "of": "progress"}]
PROGRESS = {"target": "progress"}
OWN = """def shaped(column, batch, progress_T, progress_end_P):
    return column


def copied(progress_T):
    return progress_T


def wrong(column, batch, progres_T):
    return column
"""


@pytest.fixture
def load(tmp_path):
    """Load a recipe with these settings of its rl stage, one to a line from line 11 on."""
    (tmp_path / "mine.py").write_text(OWN)

    def load(more="", **settings):
        settings = {"algorithm": "grpo", **settings}
        plain = {key: yaml.safe_dump(value, default_flow_style=True, width=10**6) for key, value in settings.items()}
        lines = [f"    {key}: {text.removesuffix('...' + chr(10)).strip()}" for key, text in plain.items()]
        (tmp_path / "tried.yaml").write_text(HEAD + "\n".join(lines) + "\n" + more)
        return load_recipe(tmp_path / "tried.yaml")

    return load


REFUSED = {
    "no target and no model": (
        {"auxiliary_models": {"progress": {"head": "state"}}, "advantage": POTENTIAL},
        "auxiliary_models.progress",
        "give a `target` to predict",
        "",
    ),
    "a loss without a target": (
        {"auxiliary_models": {"progress": {"model": "base", "loss": "huber"}}, "advantage": POTENTIAL},
        "auxiliary_models.progress",
        "`loss` has no effect without a `target`",
        "",
    ),
    "a slow copy of an untrained model": (
        {
            "auxiliary_models": {"progress": {"model": "base", "target_network": {"mixup_alpha": 0.1}}},
            "advantage": POTENTIAL,
        },
        "auxiliary_models.progress",
        "`target_network` has no effect without a `target`",
        "",
    ),
    "publishing an untrained copy": (
        {"auxiliary_models": {"progress": {"model": "base", "publish": True}}},
        "auxiliary_models.progress",
        "would publish an untrained copy",
        "",
    ),
    "several heads of actions": (
        {"auxiliary_models": {"q": {"head": "action", "heads": 2, "target": "temporal_difference"}}},
        "auxiliary_models.q",
        "supports a single head",
        "",
    ),
    "a scale without a likelihood": (
        {"auxiliary_models": {"progress": {**PROGRESS, "beta": 0.1}}, "advantage": POTENTIAL},
        "auxiliary_models.progress",
        "`beta` needs `head: likelihood`",
        "",
    ),
    "nobody reads it": (
        {"auxiliary_models": {"progress": PROGRESS}},
        "auxiliary_models.progress",
        "`progress_T` is neither read",
        "publish: true",
    ),
    "another column already": (
        {"auxiliary_models": {"advantage": {**PROGRESS, "publish": True}}},
        "auxiliary_models.advantage",
        "a column `advantage_T` exists already",
        "my_advantage",
    ),
    "no column": (
        {"auxiliary_models": {"lp_x": {**PROGRESS, "publish": True}}},
        "auxiliary_models.lp_x",
        "cannot name a column",
        "references",
    ),
    "a misspelt auxiliary": (
        {
            "auxiliary_models": {"progress": {**PROGRESS, "publish": True}},
            "advantage": [{"use": "potential", "of": "progres"}],
        },
        "advantage.0.of",
        "no auxiliary model `progres`",
        "`progress`",
    ),
    "no auxiliaries at all": (
        {"advantage": POTENTIAL},
        "advantage.0.of",
        "no auxiliary model `progress`",
        "auxiliary_models",
    ),
    "a misspelt column of one's own function": (
        {"auxiliary_models": {"progress": {**PROGRESS, "publish": True}}, "advantage": ["mine:wrong"]},
        "advantage.0",
        "needs `progres_T`",
        "`progress_T`",
    ),
    "a target of no reward": (
        {"auxiliary_models": {"p": {"target": {"use": "outcome", "of": "answers.exakt"}, "publish": True}}},
        "auxiliary_models.p.target.of",
        "no reward `answers.exakt`",
        "`answers.exact`",
    ),
    "a branch of nothing": (
        {"advantage_streams": [{"of": "progress", "advantage": ["reward_to_go"]}]},
        "advantage_streams.0.of",
        "no reward `progress`",
        "answers.exact",
    ),
    "looking ahead from a completion": (
        {
            "auxiliary_models": {"p": {"head": "path", "target": "temporal_difference"}},
            "reward_shaping": [{"use": "from_tokens", "of": "p"}],
        },
        "auxiliary_models.p.target",
        "needs the value of the next state",
        "head: state",
    ),
    "the mean over no actions": (
        {"auxiliary_models": {"p": {"target": "mean_action", "publish": True}}},
        "auxiliary_models.p.target",
        "needs the mean over actions",
        "head: action",
    ),
    "a slow copy for nothing": (
        {"auxiliary_models": {"p": {"target": "progress", "target_network": {}, "publish": True}}},
        "auxiliary_models.p.target_network",
        "does not use later values",
        "temporal_difference",
    ),
    "two value models": (
        {
            "algorithm": "ppo",
            "critic": {"publish": True},
            "auxiliary_models": {"p": {"target": "progress", "publish": True}},
        },
        "auxiliary_models.p.publish",
        "two outputs",
        "a separate stage",
    ),
    "a judge that publishes actions": (
        {"auxiliary_models": {"q": {"head": "action", "target": "temporal_difference", "publish": True}}},
        "auxiliary_models.q",
        "cannot be published",
        "",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused_at_its_place(load, name):
    settings, where, message, advice = REFUSED[name]
    with pytest.raises(RecipeError) as caught:
        load(**settings)
    (problem,) = caught.value.problems
    assert problem.path == f"stages.rl.{where}"
    assert message in problem.message
    assert advice in problem.advice
    assert problem.line >= 11
    assert problem.column > 5


READ = {
    "by an option": {"advantage": POTENTIAL},
    "as a branch": {"advantage_streams": [{"of": "progress", "advantage": ["reward_to_go"]}]},
    "by a function's own words": {"advantage": ["center", "mine:shaped"]},
    "by another auxiliary's target": {
        "auxiliary_models": {"progress": PROGRESS, "far": {"target": "mine:copied", "publish": True}},
    },
}


@pytest.mark.parametrize("how", READ)
def test_one_that_is_read_somewhere_may_stay(load, how):
    assert load(**{"auxiliary_models": {"progress": PROGRESS}, **READ[how]}).warnings == ()


def test_what_is_published_is_an_output_of_its_type(load):
    block = {"head": "likelihood", "target": {"use": "outcome", "of": "answers.exact"}, "loss": "logistic"}
    both = {"auxiliary_models": {"credit": {**block, "publish": True}}, "algorithm": "ppo", "critic": {"publish": True}}
    outputs = load(**both).outputs("rl")
    assert outputs["value_model"] == "value_model"
    assert outputs["process_reward_model"] == "process_reward_model"
    assert next(iter(outputs)) == "model"
    assert "value_model" not in load(algorithm="ppo").outputs("rl")


def test_a_value_model_goes_where_one_is_wanted_and_nowhere_else(load):
    more = """  after:
    kind: rl
    model: rl
    prompts: problems
    algorithm: ppo
    rewards: [answers.exact]
    max_steps: 2
    critic: {model: rl.value_model}
"""
    recipe = load(more, algorithm="ppo", critic={"publish": True, "warmup_steps": 2})
    (port,) = [p for p in recipe.ports("after") if p.path == "critic.model"]
    assert (port.steps, port.output, port.type) == (("rl",), "value_model", "value_model")
    with pytest.raises(RecipeError, match="value_model"):
        load(more.replace("model: rl\n", "model: rl.value_model\n"), algorithm="ppo", critic={"publish": True})
    with pytest.raises(RecipeError, match="value_model"):
        load(more)
