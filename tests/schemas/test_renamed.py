"""A recipe with an old word gets an error at the word's place that names the present one, for every renamed word."""

import pytest

from schemas.errors import RecipeError
from schemas.recipe import load_recipe
from schemas.renamed import FUNCTIONS, KEYS, METRICS, VALUES

BASE = """name: old
stages:
  base: {kind: init}
  problems:
    {kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: chain_sum, size: 9, split: train}]}
  traces: {kind: synthesize, prompts: problems, teacher: answer}
"""
RL = """  rl:
    kind: rl
    model: base
    prompts: problems
    rewards: [answers.exact]
    algorithm: grpo
    max_steps: 1
"""
EVALUATE = """  report:
    kind: evaluate
    model: base
    prompts: problems
"""
PRACTICE = """  practised: {kind: practice, model: base, prompts: problems, plan: uniform}
"""
# Old key: a line of an rl stage (or a stage of another kind) that has it, and the word that replaced it there.
OLD_KEYS = {
    "plan": ("    plan: uniform\n", "prompt_sampler"),
    "plan of practice": (PRACTICE, "prompt_sampler"),
    "drive": ("    drive: synchronous\n", "rollout"),
    "process": ("    process: []\n", "logits_processors"),
    "follow_up": ("    follow_up: []\n", "resample"),
    "max_rounds": ("    max_rounds: 3\n", "max_sampling_rounds"),
    "source": ("    source: []\n", "extra_samples"),
    "filter": ("    filter: reward_variance\n", "filter_groups"),
    "shape": ("    shape: []\n", "reward_shaping"),
    "branches": ("    branches: []\n", "advantage_streams"),
    "modulate": ("    modulate: []\n", "advantage_shaping"),
    "correct": ("    correct: []\n", "importance_correction"),
    "correct of a shaping": ("    reward_shaping: [{use: shorter, correct: answers.exact}]\n", "reward"),
    "select": ("    select: []\n", "token_mask"),
    "select of a term": ("    loss_terms: [{use: entropy, coef: 0.1, select: [own]}]\n", "token_mask"),
    "select of a critic": ("    critic: {select: [own]}\n", "token_mask"),
    "surrogate": ("    surrogate: clipped\n", "policy_loss"),
    "weigh": ("    weigh: token_mean\n", "loss_aggregation"),
    "weigh of a term": ("    loss_terms: [{use: entropy, coef: 0.1, weigh: token_mean}]\n", "loss_aggregation"),
    "weigh of a correction": ("    importance_correction: [{use: token, weigh: false}]\n", "reweight"),
    "components": ("    components: []\n", "loss_terms"),
    "control": ("    control: {}\n", "controllers"),
    "control in a number": ("    loss_terms: [{use: entropy, coef: {control: beta}}]\n", "controller"),
    "control in an option": ("    policy_loss: {epsilon: {control: beta}}\n", "controller"),
    "auxiliaries": ("    auxiliaries: {}\n", "auxiliary_models"),
    "every": ("    references: {prev: {every: 2}}\n", "sync_steps"),
    "mix": ("    references: {prev: {mix: 0.5}}\n", "mixup_alpha"),
    "follow": ("    auxiliary_models: {progress: {target: progress, follow: {}}}\n", "target_network"),
    "factor": ("    watch: [{metric: reward, min: 0.0, action: roll_back, factor: 0.5}]\n", "learning_rate_factor"),
    "program": (EVALUATE + "    program: {use: retrieve, data: traces}\n", "solver"),
    "component": ("    filter_groups: {use: reward_variance, component: answers.exact}\n", "reward"),
}
OLD_FUNCTIONS = {
    "whole": "    rollout: whole\n",
    "refill": "    resample: [{use: refill, budget: 4.0}]\n",
    "togo": "    advantage: [togo]\n",
    "diff": "    advantage: [diff]\n",
    "running": "    advantage: [{use: running, by: family}]\n",
    "lift": "    advantage: [lift]\n",
    "ce": "    loss_terms: [{use: ce, coef: 0.1}]\n",
    "ce_uncertain": "    loss_terms: [{use: ce_uncertain, coef: 0.1}]\n",
}
OLD_VALUES = {
    "cap": "    importance_correction: [{use: token, outside: cap}]\n",
    "drop": "    importance_correction: [{use: token, outside: drop}]\n",
    "step_back": "    watch: [{metric: reward, min: 0.0, action: step_back}]\n",
}
KL = "    controllers: {beta: {use: adaptive_kl, target: 0.1}}\n"
OLD_METRICS = {
    "control/beta": ("controller/beta", KL + "    watch: [{metric: control/beta, max: 1.0}]\n"),
    "loss/ce": (
        "loss/cross_entropy",
        "    loss_terms: [{use: cross_entropy, coef: 0.1}]\n    watch: [{metric: loss/ce, max: 1.0}]\n",
    ),
}


@pytest.fixture
def refused(tmp_path):
    """The problems of a recipe with some more lines, and its text."""

    def check(lines):
        text = BASE + (lines if lines.startswith("  ") and lines[2] != " " else RL + lines)
        (tmp_path / "old.yaml").write_text(text)
        with pytest.raises(RecipeError) as caught:
            load_recipe(tmp_path / "old.yaml")
        return caught.value.problems, text

    return check


def check_place(problem, text, word):
    """The error stands where the old word stands."""
    line = text.splitlines()[problem.line - 1]
    assert line[problem.column - 1 :].removeprefix("{use: ").startswith(word), (problem, line)


@pytest.mark.parametrize("what", OLD_KEYS)
def test_an_old_key_is_named_with_the_present_one(refused, what):
    lines, new = OLD_KEYS[what]
    old = what.partition(" ")[0]
    problems, text = refused(lines)
    (problem,) = [p for p in problems if p.message == f"`{old}` is now `{new}`"]
    check_place(problem, text, old)
    assert problem.advice.startswith(f"write `{new}")


@pytest.mark.parametrize("old", OLD_FUNCTIONS)
def test_an_old_function_is_named_with_the_present_one(refused, old):
    problems, text = refused(OLD_FUNCTIONS[old])
    (problem,) = [p for p in problems if p.message == f"`{old}` is now `{FUNCTIONS[old]}`"]
    check_place(problem, text, old)


@pytest.mark.parametrize("old", OLD_VALUES)
def test_an_old_value_is_named_with_the_present_one(refused, old):
    problems, text = refused(OLD_VALUES[old])
    (problem,) = [p for p in problems if p.message == f"`{old}` is now `{VALUES[old]}`"]
    check_place(problem, text, old)


@pytest.mark.parametrize("old", OLD_METRICS)
def test_an_old_metric_is_named_with_the_present_one(refused, old):
    new, lines = OLD_METRICS[old]
    problems, text = refused(lines)
    (problem,) = [p for p in problems if p.message == f"`{old}` is now `{new}`"]
    check_place(problem, text, old)


def test_every_old_word_is_tried():
    tried = {(what.partition(" ")[0], new) for what, (_, new) in OLD_KEYS.items()}
    assert tried == {(old, new) for old, words in KEYS.items() for new in words}
    assert OLD_FUNCTIONS.keys() == FUNCTIONS.keys()
    assert OLD_VALUES.keys() == VALUES.keys()
    assert {old.partition("beta")[0] for old in OLD_METRICS} == METRICS.keys()


def test_a_key_under_its_old_name_is_not_also_missing(refused):
    lines = "".join(
        f"    {line}\n" for line in ("advantage: [center]", "ratio: token", "surrogate: clipped", "weigh: token_mean")
    )
    text = BASE + RL.replace("    algorithm: grpo\n", "") + lines
    problems, _ = refused(text.removeprefix(BASE))
    assert [p.message for p in problems] == ["`surrogate` is now `policy_loss`", "`weigh` is now `loss_aggregation`"]


def test_an_old_word_has_no_advice_where_it_is_another_mistake(refused):
    problems, _ = refused("    rewards: [{use: answers.exact, weigh: 2.0}]\n    rollouts: synchronous\n")
    assert not [p for p in problems if " is now " in p.message]
