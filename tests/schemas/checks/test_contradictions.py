"""Settings of an rl stage that contradict each other are refused at their place; what is only odd is mentioned."""

import pytest
import yaml

from schemas.errors import RecipeError
from schemas.expansion.expand import find_presets
from schemas.recipe.load import load_recipe

HEAD = """name: tried
stages:
  base: {kind: init}
  problems: {kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: gcd, size: 9, split: train}]}
  traces: {kind: synthesize, prompts: problems, teacher: answer}
  rl:
    kind: rl
    model: base
    prompts: problems
    rewards: [answers.exact, {use: formats.matches, pattern: x}]
    max_steps: 2
"""
GRPO, ASYNC = {"algorithm": "grpo"}, {"algorithm": "async_grpo"}


@pytest.fixture
def load(tmp_path):
    """Load a recipe with these settings of its rl stage, one to a line from line 12 on."""

    def load(**settings):
        plain = {key: yaml.safe_dump(value, default_flow_style=True, width=10**6) for key, value in settings.items()}
        lines = [f"    {key}: {text.removesuffix('...' + chr(10)).strip()}" for key, text in plain.items()]
        text = HEAD + "\n".join(lines) + "\n"
        (tmp_path / "tried.yaml").write_text(text)
        return load_recipe(tmp_path / "tried.yaml")

    return load


def use(name, **options):
    return {"use": name, **options}


REFUSED = {
    "one completion in a group": (
        {**GRPO, "num_generations": 1},
        "advantage.0",
        "every advantage 0",
        "num_generations",
    ),
    "others of one": (
        {**GRPO, "num_generations": 1, "advantage": [use("center", by="family", within="group", stat="loo")]},
        "advantage.0",
        "every advantage 0",
        "by: batch",
    ),
    "more handed in than sampled": (
        {"algorithm": "pass_at_k", "num_generations": 2, "advantage": [use("pass_at_k", k=3)]},
        "advantage.0.k",
        "k is 3, but a group has 2",
        "lower k",
    ),
    "two behaviour denominators": (
        {**GRPO, "importance_correction": [use("token", high=2.0)]},
        "importance_correction.0",
        "both `token` and `token` divide",
        "ratio: decoupled",
    ),
    "k1 in the loss": (
        {**GRPO, "loss_terms": [use("kl", estimator="k1", coef=0.1)]},
        "loss_terms.0.estimator",
        "k1 has no effect",
        "k2 or k3",
    ),
    "k1 to two references": (
        {
            **GRPO,
            "loss_terms": [use("kl_convex", estimator="k1", coef=0.1)],
            "references": {"base": {}, "previous": {"sync_steps": 2}},
        },
        "loss_terms.0.estimator",
        "k1 has no effect",
        "k2 or k3",
    ),
    "an expert under a ratio": (
        {**GRPO, "extra_samples": [use("expert", data="traces")]},
        "extra_samples.0",
        "adds completions without a sampling probability",
        "token_mask: [own]",
    ),
    "old samples as own ones": (
        {"algorithm": "rloo", "extra_samples": [use("replay")]},
        "extra_samples.0",
        "`replay` returns samples of older weights, which `none`",
        "ratio: token",
    ),
    "the best of each group, compared with itself": (
        {**GRPO, "extra_samples": [use("replay", above_mean=True)]},
        "extra_samples.0.above_mean",
        "what is stored of a group is above its mean",
        "recent_baseline",
    ),
    "old samples and nothing between": (
        {**GRPO, "ratio": "decoupled", "rollout": use("windowed", window=4, max_windows=2)},
        "rollout",
        "`windowed` returns samples of older weights, which `decoupled`",
        "add `importance_correction:`",
    ),
    "open ends in a group": (
        {**GRPO, "rollout": use("windowed", window=4, partial="all")},
        "rollout.partial",
        "incomplete completions have no reward yet, but `center`",
        "partial: wait",
    ),
    "values without a critic": (
        {**GRPO, "advantage": [use("gae")]},
        "advantage.0",
        "needs the values of a critic",
        "critic:",
    ),
    "a critic without a target": (
        {**GRPO, "critic": {"learning_rate": 1e-3}},
        "critic",
        "the critic has no target",
        "`gae`",
    ),
    "a branch of no reward": (
        {**GRPO, "advantage_streams": [{"of": "formats.match", "advantage": [use("center")]}]},
        "advantage_streams.0.of",
        "no reward `formats.match`",
        "did you mean `formats.matches`?",
    ),
    "a filter by no reward": (
        {**GRPO, "filter_groups": use("reward_variance", reward="answers.exactly")},
        "filter_groups.reward",
        "no reward `answers.exactly`",
        "did you mean `answers.exact`?",
    ),
    "a number of no controller": (
        {
            **GRPO,
            "policy_loss": use("clipped", epsilon_high={"controller": "uper"}),
            "controllers": {"upper": use("pid", metric="kl")},
        },
        "policy_loss.epsilon_high",
        "no controller `uper`",
        "did you mean `upper`?",
    ),
    "a controller of a misspelt point": (
        {**GRPO, "controllers": {"beta": use("pid", metric="entrpy")}, "temperature": 1.0},
        "controllers.beta.metric",
        "this stage reports no metric `entrpy`",
        "`entropy`",
    ),
    "objectives that are not measured": (
        {
            **GRPO,
            "controllers": {"a": use("recap", objective="reward/answers.exakt", best={"reward/answers.exakt": 1.0})},
        },
        "controllers.a.best",
        "this stage reports no metric `reward/answers.exakt`",
        "reward/answers.exact",
    ),
    "a divergence from nobody": (
        {**GRPO, "loss_terms": [], "controllers": {"beta": use("adaptive_kl", target=0.1)}},
        "controllers.beta.metric",
        "this stage reports no metric `kl`",
        "loss_terms",
    ),
    "a watch of a misspelt point": (
        {**GRPO, "watch": [{"metric": "rewards", "min": 0.0}]},
        "watch.0.metric",
        "this stage reports no metric `rewards`",
        "`reward`",
    ),
    "samples asked ahead as own ones": (
        {"algorithm": "rloo", "rollout": "streamed"},
        "rollout",
        "`streamed` returns samples of older weights, which `none`",
        "ratio: token",
    ),
    "samples asked one step ahead and nothing between": (
        {**GRPO, "ratio": "decoupled", "rollout": "one_step_off"},
        "rollout",
        "`one_step_off` returns samples of older weights, which `decoupled`",
        "add `importance_correction:`",
    ),
    "more ahead than may be stale": (
        {**ASYNC, "rollout": use("streamed", max_staleness=1, ahead=2)},
        "rollout.ahead",
        "2 iterations ahead would exceed `max_staleness: 1`",
        "lower `ahead`",
    ),
    "workers that lag where nothing may": (
        {**ASYNC, "rollout": use("streamed", max_staleness=0, sync="each")},
        "rollout.sync",
        "samples would exceed `max_staleness: 0` (workers are one version behind)",
        "raise `max_staleness`",
    ),
    "no room for the lag of workers": (
        {**ASYNC, "rollout": use("streamed", max_staleness=2, ahead=2, sync="each")},
        "rollout.ahead",
        "`max_staleness: 2` (workers are one version behind)",
        "lower `ahead`",
    ),
    "new weights under what runs, and not": (
        {**ASYNC, "rollout": use("streamed", max_staleness=2, sync="each", interrupt=False)},
        "rollout.sync",
        "which `interrupt: false` forbids",
        "remove one of the two",
    ),
    "steps counted where nobody can": (
        {**ASYNC, "rollout": use("streamed", steps_per_update=4), "resources": {"rollout": {"workers": 1}}},
        "rollout.steps_per_update",
        "has no effect with `resources.rollout`",
        "remove one",
    ),
    "two steps of a batch that is not complete": (
        {**ASYNC, "rollout": "periodic", "num_mini_batches": 2},
        "num_mini_batches",
        "`periodic` trains on groups before the batch is complete",
        "num_mini_batches: 1",
    ),
    "a whole batch compared in pieces": (
        {**ASYNC, "rollout": "periodic", "advantage": ["center", use("scale", by="batch")]},
        "advantage.1",
        "`scale` compares the complete batch",
        "by: group",
    ),
    "more asked for than is waited for": (
        {**ASYNC, "rollout": "periodic", "resample": [use("dynamic_sampling")]},
        "resample",
        "which `resample` does not support",
        "rollout: synchronous",
    ),
    "a group of trainers and pieces": (
        {**ASYNC, "rollout": "periodic", "resources": {"train": {"workers": 2}}},
        "resources.train",
        "which needs a single trainer",
        "rollout: streamed",
    ),
    "a reference of no name": (
        {**GRPO, "loss_terms": [use("kl_convex", coef=0.1)], "references": {"base": {}}},
        "loss_terms.0",
        "`references` has no `previous`",
        "previous: {sync_steps: 1}",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_contradiction_is_refused_at_its_place_with_advice(load, what):
    settings, where, message, advice = REFUSED[what]
    with pytest.raises(RecipeError) as caught:
        load(**settings)
    matching = [p for p in caught.value.problems if p.path == f"stages.rl.{where}" and message in p.message]
    assert matching, [(p.path, p.message, p.advice) for p in caught.value.problems]
    assert advice in matching[0].advice
    written = list(settings).index(where.partition(".")[0]) if where.partition(".")[0] in settings else None
    if written is not None:
        assert matching[0].line == 12 + written


def test_a_reward_that_computes_with_the_policy_is_refused_beside_its_training(load, tmp_path):
    with pytest.raises(RecipeError):
        load(**GRPO, rollout="streamd")
    text = (tmp_path / "tried.yaml").read_text().replace("{use: formats.matches, pattern: x}", "likelihood.answer")
    for rollout, refused in (("synchronous", False), ("streamed", True), ("periodic", True)):
        (tmp_path / "tried.yaml").write_text(text.replace("streamd", rollout))
        if not refused:
            load_recipe(tmp_path / "tried.yaml")
            continue
        with pytest.raises(RecipeError) as caught:
            load_recipe(tmp_path / "tried.yaml")
        (problem,) = caught.value.problems
        assert problem.path == "stages.rl.rewards.1"
        assert "needs `sampler`" in problem.message
        assert "`rollout: synchronous`" in problem.advice


MENTIONED = {
    "several updates of a biased penalty": ({**GRPO, "num_iterations": 2}, "not weighted by the ratio"),
    "several updates at ratio 1": (
        {"algorithm": "rloo", "num_mini_batches": 2},
        "`none` is biased",
    ),
    "a wide clip of sequences": ({"algorithm": "gspo", "policy_loss": use("clipped", epsilon=0.1)}, "never clips"),
    "a clip that nothing reaches": ({**GRPO, "policy_loss": use("clipped", epsilon=0.1)}, "epsilon has no effect"),
    "a reference that nobody asks for": ({**GRPO, "references": {"old": {"sync_steps": 3}}}, "`lp_old_T`"),
    "a controller of nothing": (
        {**GRPO, "controllers": {"beta": use("pid", metric="kl")}},
        "the controller `beta` is never used",
    ),
}


@pytest.mark.parametrize("what", MENTIONED)
def test_what_is_odd_is_mentioned(load, what):
    settings, message = MENTIONED[what]
    assert [w for w in load(**settings).warnings if message in w.message]


ALLOWED = {
    "a mask beside a ratio": {
        **GRPO,
        "importance_correction": [use("token", high=2.0, outside="mask", reweight=False)],
    },
    "a weight beside a decoupled ratio": {
        **GRPO,
        "ratio": "decoupled",
        "importance_correction": [use("token", high=2.0)],
    },
    "a single sample beside a greedy one": {
        **GRPO,
        "num_generations": 1,
        "prompt_sampler": "with_greedy",
        "advantage": [use("center", among=["greedy"])],
    },
    "an expert whom the surrogate knows": {"algorithm": "luffy", "extra_samples": [use("expert", data="traces")]},
    "an expert whom a component imitates": {"algorithm": "chord", "extra_samples": [use("expert", data="traces")]},
    "old samples under their own ratio": {**GRPO, "extra_samples": [use("replay")]},
    "the best of each group, compared with recent ones": {
        **GRPO,
        "extra_samples": [use("replay", above_mean=True)],
        "advantage": [use("center", by="group"), use("recent_baseline")],
    },
    "samples asked ahead under their own ratio": {**GRPO, "rollout": use("streamed", max_staleness=4)},
    "samples asked ahead and corrected": {**ASYNC, "rollout": "one_step_off"},
    "pieces of samples that are never old": {"algorithm": "rloo", "rollout": "periodic"},
    "nothing that may be old": {"algorithm": "rloo", "rollout": use("streamed", max_staleness=0)},
    "a watch on ages": {
        **ASYNC,
        "rollout": "streamed",
        "watch": [{"metric": "staleness_max", "max": 1.0}],
    },
    "a critic with gae": {"algorithm": "ppo"},
    "a branch of the second reward": {
        **GRPO,
        "advantage_streams": [{"of": "formats.matches", "advantage": [use("center")]}],
    },
}


@pytest.mark.parametrize("what", ALLOWED)
def test_inputs_that_fit_are_allowed(load, what):
    assert load(**ALLOWED[what]).warnings == ()


@pytest.mark.parametrize("name", find_presets())
def test_no_preset_contradicts_itself(load, name):
    more = {"references": {"teacher": {"model": "base"}}} if name == "teacher" else {}
    assert load(algorithm=name, **more).warnings == ()
