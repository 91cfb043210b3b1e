import json

import pyarrow.parquet as pq
import pytest
import torch

from learning.data.chat import encode_prompt
from learning.models.policy import load_policy
from learning.rl.iteration import limit_completions
from schemas.errors import StepError
from tasks.rl import run
from tests.tasks.rl_stages import make_rl_stage

ALGORITHM = {
    "advantage": ["center", "scale"],
    "ratio": "token",
    "policy_loss": "clipped",
    "loss_aggregation": "sequence_mean",
    "loss_terms": [{"use": "kl", "coef": {"linear": {"from": 0.05, "to": 0.0, "steps": 6}}}],
}


def stage(**more):
    return make_rl_stage(**{"rewards": [f"{__name__}:short"], **ALGORITHM, **more})


def short(rows, completions):
    """The shorter, the better."""
    return [-len(text) / 8 for text in completions]


def constant(rows, completions):
    """All the same."""
    return [1.0] * len(completions)


def sometimes(rows, completions):
    """Cannot judge a text with an e in it."""
    return [None if "e" in text else float(len(text) % 2) for text in completions]


def moved(inputs, context):
    """Largest change of each parameter."""
    before, after = load_policy(inputs["model"]), load_policy(context.folder / "outputs" / "model")
    pairs = zip(before.model.parameters(), after.model.parameters(), strict=True)
    return [float((a - b).detach().abs().max()) for a, b in pairs]


def test_trap_24_a_continued_run_is_bit_identical(at, training):
    whole = at("whole")
    result = run(stage(log_trajectories=0.6), whole)
    for attempt, step in enumerate((1, 3, 5, 6)):
        with pytest.raises(training.Stopped):
            run(stage(log_trajectories=0.6), at("broken", attempt, training.stop_at(step)))
    last = at("broken", 4)
    again = run(stage(log_trajectories=0.6), last)
    assert training.files(last) == training.files(whole)
    assert training.curve(last) == training.curve(whole)
    assert again == result
    assert len(training.curve(last)) == 6


@pytest.mark.parametrize("harm", ["step", "rows"])
def test_a_resumed_run_uses_nothing_that_was_changed_meanwhile(at, training, harm, capsys):
    whole = at("whole")
    result = run(stage(), whole)
    with pytest.raises(training.Stopped):
        run(stage(), at("broken", 0, training.stop_at(6)))
    place = at("broken", 1).checkpoints
    if harm == "step":
        state = sorted(place.glob("step-*"))[-1] / "state.json"
        content = json.loads(state.read_text())
        state.write_text(json.dumps(content | {"step": content["step"] - 1}))
    else:
        rows = sorted((place / "trajectories").iterdir())[-1]
        rows.write_bytes(sorted((place / "trajectories").iterdir())[0].read_bytes())
    last = at("broken", 2)
    assert run(stage(), last) == result
    assert training.files(last) == training.files(whole)
    assert "it is not used" in capsys.readouterr().out


def test_two_runs_are_bit_identical_and_move_the_weights(at, inputs, training):
    first, second = at("first"), at("second")
    run(stage(), first)
    run(stage(), second)
    assert training.files(first) == training.files(second)
    assert min(moved(inputs, first)) > 1e-4


def test_trap_07_engine_and_trainer_agree_at_any_temperature(at, training):
    context = at("warm")
    run(stage(temperature=0.7, num_iterations=2, num_mini_batches=2), context)
    assert all(point["logprob_gap"] < 1e-5 for point in training.curve(context))
    assert max(point["kl_to_sampler"] for point in training.curve(context)) > 1e-6


def test_trap_17_a_policy_rewarded_for_stopping_learns_to_stop(at, training):
    context = at("stop")
    run(stage(max_steps=30, save_steps=100, max_completion_length=16, loss_terms=[]), context)
    points = training.curve(context)
    assert points[0]["completion_length"] > 6
    assert points[-1]["completion_length"] < 2
    assert points[-1]["truncated"] < 0.1 < points[0]["truncated"]


def test_trajectories_hold_every_completion(at, inputs):
    context = at("rows")
    run(stage(max_steps=2), context)
    table = pq.read_table(context.folder / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()
    assert len(table) == 32
    assert [(r["step"], r["group"], r["sample"]) for r in table[:5]] == [(0, 0, i) for i in range(4)] + [(0, 1, 0)]
    policy = load_policy(inputs["model"])
    for row in table:
        assert row["reward"] == dict(row["scores"])[f"{__name__}:short"] == -len(row["completion"]) / 8
        assert len(row["token_ids"]) == len(row["logprobs"]) <= 8
        assert policy.tokenizer.decode(row["token_ids"], skip_special_tokens=True) == row["completion"]
        assert row["status"] == ("truncated" if row["token_ids"][-1] != policy.tokenizer.eos_token_id else "done")
    # Log-probabilities of the first step are those of the starting model.
    row = table[0]
    prompt = encode_prompt(policy.tokenizer, [{"role": "user", "content": row["prompt_id"]}])
    with torch.no_grad():
        logits = policy.model(torch.tensor([prompt + row["token_ids"]])).logits[0, len(prompt) - 1 : -1]
    want = logits.log_softmax(-1).gather(1, torch.tensor(row["token_ids"])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(row["logprobs"]), want, atol=1e-5, rtol=0)


def test_unscorable_completions_are_counted_and_left_out(at, training):
    context = at("unscorable")
    result = run(stage(rewards=[f"{__name__}:sometimes", f"{__name__}:short"], max_steps=3), context)
    table = pq.read_table(context.folder / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()
    lost = [r for r in table if "e" in r["completion"]]
    assert 0 < len(lost) < len(table)
    assert all(r["status"] == "unscorable" and r["reward"] is None and not r["trained"] for r in lost)
    assert all(r["advantage"] is None for r in lost)
    assert dict(lost[0]["scores"]) == {
        f"{__name__}:sometimes": None,
        f"{__name__}:short": -len(lost[0]["completion"]) / 8,
    }
    share = [sum("e" in r["completion"] for r in table if r["step"] == s) / 16 for s in range(3)]
    assert [p["unscorable"] for p in training.curve(context)] == pytest.approx(share)
    # The rest of each group is centred among itself.
    for step, group in {(r["step"], r["group"]) for r in table}:
        mine = [r["advantage"] for r in table if (r["step"], r["group"]) == (step, group) and r["trained"]]
        assert sum(mine) == pytest.approx(0, abs=1e-9)
    assert result.metrics["unscorable"] == pytest.approx(share[-1])
    cut = sum(r["status"] == "truncated" or ("e" in r["completion"] and len(r["token_ids"]) == 8) for r in table)
    assert any(f"{len(lost)} of 48 completions have no reward: a reward returned None" in n for n in result.notices)
    assert any(n.startswith(f"{cut} of 48 completions (") for n in result.notices)


def test_nothing_to_learn_leaves_the_weights(at, inputs):
    context = at("nothing")
    rewards = [f"{__name__}:constant", {"use": f"{__name__}:short", "weight": 0.5}]
    result = run(stage(rewards=rewards, filter_groups="reward_variance", max_steps=2), context)
    assert max(moved(inputs, context)) == 0.0
    assert result.metrics["trained"] == 0.0
    assert result.metrics[f"reward/{__name__}:constant"] == 1.0


def test_prompts_too_long_are_refused(at):
    with pytest.raises(StepError, match="lower max_completion_length"):
        run(stage(max_completion_length=10_000), at("long"))


def test_a_limit_of_completions_rises_with_the_iterations(at):
    made = stage(max_completion_length=8, completion_limit={"piecewise": {0: 2, 2: 5, 4: 8}})
    assert [limit_completions(made, step) for step in range(6)] == [2, 2, 5, 5, 8, 8]
    whole = at("whole")
    run(made, whole)
    rows = pq.read_table(whole.folder / "outputs" / "trajectories").select(["step", "token_ids", "status"]).to_pylist()
    longest = [max(len(row["token_ids"]) for row in rows if row["step"] == step) for step in range(6)]
    assert longest == [2, 2, 5, 5, 8, 8]
    cut = {True: set(), False: set()}
    for row in rows:
        cut[len(row["token_ids"]) == limit_completions(made, row["step"])].add(row["status"])
    assert cut[True] == {"done", "truncated"}
    assert cut[False] <= {"done"}


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ({"piecewise": {0: 5, 3: 2}}, "it falls"),
        ({"linear": {"from": 2, "to": 9, "steps": 4}}, "2 to 9 is not within 1 and `max_completion_length`"),
        (0, "0 to 0 is not within"),
        ({"controller": "pid"}, "give a schedule"),
    ],
)
def test_limits_of_completions_that_cannot_hold_are_refused(limit, problem):
    with pytest.raises(ValueError, match=problem):
        stage(max_completion_length=8, completion_limit=limit)
