"""The RL loop with parts that remember, several references, critics and watchdogs."""

import pytest
import torch

from learning.models.policy import load_policy
from learning.parallel.group import ALONE, Group
from learning.samples.sample import SampleRequest
from schemas.errors import StepError
from tasks.rl import describe_whole_copies, load_start, run
from tests.tasks.rl_stages import make_rl_stage, write_prompts

HERE = __name__


def stage(**more):
    return make_rl_stage(**{"rewards": [f"{HERE}:short"], **more})


def short(completions):
    """The shorter, the better."""
    return [-len(text) / 8 for text in completions]


def rising(completions, step):
    """Worse and worse."""
    return [-float(step) - 0.01 * len(text) for text in completions]


def again(samples, round, state):
    """The first group is dropped and asked for once more in the first round; every call is counted."""
    state["calls"] = state.get("calls", 0) + 1
    if round:
        return samples, []
    first = samples[0].group
    dropped = [t for t in samples if t.group == first]
    return [t for t in samples if t.group != first], [SampleRequest(dropped[0].row, n=len(dropped), source="hinted")]


def stored(samples, state, step):
    """The first sample of the iteration before joins its group's successor as a replay."""
    old, state["kept"] = state.get("kept"), samples[0].to_json()
    if old is None:
        return samples
    replayed = type(samples[0]).from_json({**old, "group": samples[0].group, "source": "replay"})
    return [*samples, replayed]


def anchored(lp_T, lp_ref_T, lp_prev_T):
    """Half of the squared log-ratios to two references."""
    return ((lp_T - lp_ref_T).square() + (lp_T - lp_prev_T).square()) / 2


def by_visits(metrics, state):
    """A number that rises with the iterations and falls with the length of completions."""
    state["n"] = state.get("n", 0) + 1
    return 0.2 + 0.01 * state["n"] - 0.01 * metrics.get("completion_length", 0.0)


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    folder = write_prompts(tmp_path / "prompts")
    return {"model": tiny_policy_folder, "prompts": folder, "eval_prompts": folder}


EVERYTHING = {
    "resample": [f"{HERE}:again"],
    "extra_samples": [f"{HERE}:stored"],
    "references": {"prev": {"sync_steps": 2, "mixup_alpha": 0.5}},
    "loss_terms": [{"use": f"{HERE}:anchored", "coef": {"controller": "anchor"}}],
    "controllers": {"anchor": f"{HERE}:by_visits"},
    "critic": {"learning_rate": 1e-2, "warmup_steps": 1},
    "advantage": [{"use": "gae", "lam": 0.9}],
    "num_iterations": 2,
    "num_mini_batches": 2,
    "watch": [{"metric": "reward", "min": -0.9, "patience": 2, "action": "roll_back"}],
    "eval_prompts": "p",
    "eval_steps": 2,
}


def test_trap_24_memories_critics_references_and_controls_resume_to_the_same_bits(same_when_interrupted):
    points = same_when_interrupted(run, stage(**EVERYTHING), (1, 3, 5))
    assert [p["completions"] for p in points] == [16] + [17] * 5
    assert all("value_loss" in p for p in points)
    assert ["eval_reward" in p for p in points] == [False, True] * 3
    changes = [
        b - a
        for a, b in zip(
            [p["controller/anchor"] for p in points], [p["controller/anchor"] for p in points][1:], strict=False
        )
    ]
    assert all(change != 0 for change in changes)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("spec", [{"sync_steps": 2}, {"model": "other", "sync_steps": 2}, {}], ids=str)
def test_whole_copies_of_a_sharded_policy_are_announced(at, capsys, monkeypatch, strategy, spec):
    groups = []
    monkeypatch.setattr("tasks.rl.load_part", lambda _stage, _context, group: groups.append(group))
    group, given = Group(0, 2, strategy), stage(references={"prev": spec})
    load_start(given, at("copies"), group)
    copies = strategy == "fsdp2" and spec == {"sync_steps": 2}
    assert groups == [ALONE if copies else group]
    lines = capsys.readouterr().out.splitlines()
    assert lines == describe_whole_copies(given, group)
    assert len(lines) == copies
    assert all(line.startswith("references prev: `sync_steps` keeps a whole copy of the policy") for line in lines)


def test_a_critic_alone_learns_while_it_warms_up(at, inputs):
    context = at("warming")
    warming = stage(critic={"warmup_steps": 3, "learning_rate": 1e-2}, advantage=["gae"], max_steps=3)
    result = run(warming, context)
    before, after = load_policy(inputs["model"]), load_policy(context.folder / "outputs" / "model")
    pairs = zip(before.model.parameters(), after.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert result.metrics["value_loss"] > 0


def test_values_without_a_critic_are_refused(at):
    with pytest.raises(StepError, match="critic"):
        run(stage(advantage_shaping=[f"{HERE}:by_value"]), at("none"))


def by_value(advantage_T, value_T):
    """Asks for a critic."""
    return advantage_T - value_T


def test_a_watch_stops_with_the_last_good_weights(at, inputs, training):
    context = at("stopped")
    watched = stage(rewards=[f"{HERE}:rising"], watch=[{"metric": "reward", "min": -2.5, "patience": 2}], save_steps=2)
    result = run(watched, context)
    # Rewards are −0, −1, −2, −3 and −4: outside at iterations 4 and 5, the last good checkpoint is that of 2.
    assert result.metrics["steps"] == 5
    assert "stopped at iteration 5 with the weights of iteration 2" in result.details["stopped"]
    shorter = at("shorter")
    run(stage(rewards=[f"{HERE}:rising"], max_steps=2, save_steps=2), shorter)
    assert training.files(context)["model/model.safetensors"] == training.files(shorter)["model/model.safetensors"]


def test_a_watch_steps_back_and_lowers_the_rate(at, training):
    context = at("back")
    band = {"metric": "reward", "min": -2.5, "action": "roll_back", "learning_rate_factor": 0.25}
    run(stage(rewards=[f"{HERE}:rising"], watch=[band], save_steps=1), context)
    points = training.curve(context)
    assert [p["learning_rate"] for p in points] == pytest.approx([1e-2] * 4 + [1e-2 / 4, 1e-2 / 16])
    assert ["watch/reward" in p for p in points] == [False] * 3 + [True] * 3


def test_a_watch_may_only_warn(at, training):
    quiet, warned = at("quiet"), at("warned")
    run(stage(rewards=[f"{HERE}:rising"]), quiet)
    run(
        stage(rewards=[f"{HERE}:rising"], watch=[{"metric": "reward", "max": -1.5, "min": -2.5, "action": "warn"}]),
        warned,
    )
    assert training.files(quiet) == training.files(warned)
    assert ["watch/reward" in p for p in training.curve(warned)] == [True, True, False, True, True, True]


def test_held_out_rewards_are_weighed_as_in_training(at, training):
    context = at("weighed")
    rewards = [{"use": f"{HERE}:short", "weight": {"controller": "factor"}}]
    run(stage(rewards=rewards, controllers={"factor": f"{HERE}:by_visits"}, eval_prompts="p", eval_steps=3), context)
    for point in (p for p in training.curve(context) if "eval_reward" in p):
        assert point["reward"] == pytest.approx(point["controller/factor"] * point[f"reward/{HERE}:short"])
        assert -1 <= point["eval_reward"] / point["controller/factor"] <= 0


def test_the_gap_between_training_and_held_out_reward_is_a_point(at, training):
    context = at("gap")
    run(stage(eval_prompts="p", eval_steps=3), context)
    points = training.curve(context)
    assert ["reward_gap" in p for p in points] == [False, False, True, False, False, True]
    for p in points:
        if "reward_gap" in p:
            assert p["reward_gap"] == pytest.approx(p["reward"] - p["eval_reward"])


SHIPPED = {
    "num_iterations": 2,
    "prompt_sampler": {"use": "hard_focus", "share": {"linear": {"from": 1.0, "to": 0.4, "steps": 5}}},
    "rollout": {"use": "windowed", "window": 3},
    "resample": ["dynamic_sampling"],
    "extra_samples": [{"use": "replay", "policies": 2, "groups": 2}],
    "loss_terms": [
        {"use": "kl", "estimator": "k2", "coef": {"controller": "beta"}},
        {"use": "entropy", "coef": {"controller": "bonus"}},
    ],
    "controllers": {
        "beta": {"use": "adaptive_kl", "target": 0.01},
        "bonus": {"use": "entropy_target", "target": 6.0},
        "bound": {"use": "bapo", "give": "epsilon_high"},
    },
    "policy_loss": {"use": "clipped", "epsilon_high": {"controller": "bound"}},
    "critic": {"learning_rate": 1e-2, "heads": 2, "combine": "soft_min"},
    "advantage": ["gae"],
}


def test_trap_24_curricula_windows_refill_replay_and_controllers_resume_to_the_same_bits(same_when_interrupted):
    points = same_when_interrupted(run, stage(**SHIPPED), (1, 3, 5))
    assert len({p["controller/beta"] for p in points}) > 1
    assert len({p["controller/bonus"] for p in points}) > 1
    assert len({p["completions"] for p in points}) > 1
