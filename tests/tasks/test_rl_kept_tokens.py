"""An rl stage that samples from kept tokens and predicts observations: exact, resumable, and in its key only if set."""

import pyarrow.parquet as pq
import pytest

from flows.planning.compile import compile_recipe
from learning.samples.kept_tokens import decode_kept
from lineage.layout import Layout
from schemas.recipe.load import load_recipe
from tasks.rl import run
from tests.tasks.rl_stages import make_rl_stage

ENV = {"use": "tests.tasks.episode_world:Environment", "max_turns": 4}
PREDICTS = {"use": "observation_cross_entropy", "coef": 0.5, "loss_aggregation": "observed_mean", "token_mask": []}


def stage(**more):
    """Episodes of short turns: of eight tokens that are kept one ends a turn now and then."""
    own = {"rewards": ["environment.earned"], "env": ENV, "max_completion_length": 24, "loss_terms": [PREDICTS]}
    return make_rl_stage(**{**own, "kept_tokens": {"top_k": 12, "top_p": 0.95}, "temperature": 0.8, **more})


@pytest.mark.parametrize("rollout", ["synchronous", {"use": "streamed", "max_staleness": 1, "steps_per_update": 5}])
def test_a_killed_stage_resumes_bit_identical(same_when_interrupted, rollout):
    lines = same_when_interrupted(run, stage(rollout=rollout, max_steps=4), (3,))
    assert max(line["logprob_gap"] for line in lines) < 1e-5
    assert any("loss/observation_cross_entropy" in line for line in lines) == any(line["turns"] > 1 for line in lines)


def test_trajectories_have_the_kept_tokens(at, training):
    context = at("kept")
    run(stage(max_steps=2, loss_terms=[]), context)
    table = pq.read_table(context.folder / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()
    sampled = 0
    for row in table:
        kept = decode_kept(row["kept"], 102)
        assert len(row["kept"]) == len(row["token_ids"])
        for record, mask, token, lp in zip(row["kept"], kept, row["token_ids"], row["logprobs"], strict=True):
            if record:
                sampled += 1
                assert mask[token]
                assert mask.sum() <= 12
                assert lp <= 0
            else:
                assert lp == 0  # observed
    assert sampled > 100


RECIPE = """
name: keys
stages:
  base:
    kind: init
    config: {model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
             num_key_value_heads: 2, head_dim: 8}
    max_length: 64
  exercises:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 8, style: short}]
  tuned:
    kind: rl
    algorithm: grpo
    model: base
    prompts: exercises
    rewards: [answers.exact]
    max_steps: 1
"""


def test_a_stage_has_another_key_only_if_it_sets_one_of_them(tmp_path):
    def key(more):
        (tmp_path / "keys.yaml").write_text(RECIPE + more)
        plan = compile_recipe(load_recipe(tmp_path / "keys.yaml"), Layout(tmp_path))
        return plan.step("tuned")

    plain = key("")
    assert key("    kept_tokens: null\n").key == plain.key
    assert key("    kept_tokens: {top_k: 5}\n").key != plain.key
    predicts = "{use: observation_cross_entropy, coef: 0.1, loss_aggregation: observed_mean, token_mask: []}"
    assert key(f"    loss_terms: [{predicts}]\n").key != plain.key
    assert "kept_tokens" not in plain.settings
