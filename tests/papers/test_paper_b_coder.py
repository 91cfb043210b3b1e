"""B-Coder: values of tokens that begin as the language model's logits, and a target that trusts its greedy token.

Settings, losses, programs and rewards are those of the recipe. Not shown: pass rates on APPS.
"""

import json
from pathlib import Path

import pytest
import torch

from learning.auxiliary_networks import action_value_columns
from learning.auxiliary_networks.action_value_columns import find_greedy_tokens, make_columns
from learning.auxiliary_networks.action_values import ActionValues, Learner, TokenValues, make_action_values
from learning.auxiliary_networks.episode_rows import encode_episodes
from learning.batch.batch_layout import forest
from learning.data.rows import write_rows
from learning.data.sources.query import read_query
from learning.lookup import bind
from learning.models.packed import packed_hidden
from learning.models.padded import compute_logits
from learning.rewards import models
from learning.samples.sample import SOURCES
from learning.sampling import logits_processors
from learning.sampling.scoring import scores_of
from learning.toy_tasks.stack_programs import run_program
from schemas.recipe.load import load_recipe

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "b-coder.yaml")
STAGES = LOADED.stages
VALUES, GREEDY, REPORT, RANKED = (STAGES[name] for name in ("values", "greedy", "report", "ranked"))


def make_network(policy, stage=VALUES):
    """The values of a stage before any training."""
    return make_action_values(policy, stage.heads, start=stage.start, scale=stage.logits_scale, seed=0)


def lay_out(policy, rows):
    """Rows as a batch of episodes of one turn."""
    said = [row | {"completion": [{"role": "assistant", "content": row["answer"]}]} for row in rows]
    return forest(encode_episodes(policy.tokenizer, said, [[1.0]] * len(said), 128).samples)


@pytest.mark.parametrize("stage", [VALUES, GREEDY], ids=["values", "greedy"])
def test_at_the_start_the_best_token_is_the_greedy_one_on_every_prefix(tiny_policy, stage):
    rows = bind(REPORT.tasks[0])()[:20]
    batch = lay_out(tiny_policy, rows)
    values = make_network(tiny_policy, stage)(batch)
    assert values.q_XHV.shape[:2] == (len(batch.sampled_T), 1)
    assert torch.equal(values.q_XHV[:, 0].argmax(-1), find_greedy_tokens(tiny_policy.model, batch))
    torch.testing.assert_close(values.q_XHV[:, 0].amax(-1), values.v_X)
    assert len(values.q_XHV[:, 0].argmax(-1).unique()) > 2


def test_at_the_start_the_agent_samples_as_the_language_model_does(tiny_policy, monkeypatch):
    network = make_network(tiny_policy)
    monkeypatch.setattr(logits_processors, "load_cached_values", lambda folder: network)
    (use,) = REPORT.logits_processors["coder"]
    process = bind(use, "p", {"p.values": Path("v")})
    contexts = [[5, 6, 7], [9, 4]]
    with torch.no_grad():
        logits = torch.stack([tiny_policy.model(torch.tensor([ids])).logits[0, -1] for ids in contexts])
        sampled = process.ask(0, {"logits_BV": torch.zeros_like(logits), "contexts_B": contexts})
    torch.testing.assert_close(sampled.log_softmax(-1), logits.log_softmax(-1), atol=1e-4, rtol=0)
    assert use.options["beta"] * VALUES.logits_scale == pytest.approx(1.0)


class Fixed(ActionValues):
    """Values of two tokens, the same in every state."""

    def __init__(self):
        torch.nn.Module.__init__(self)

    def forward(self, batch):
        q_XHV = torch.tensor([[[0.2, 0.9]]]).repeat(len(batch.sampled_T), 1, 1)
        return TokenValues(q_XHV, torch.zeros(len(q_XHV)))


@pytest.mark.parametrize(("stage", "target"), [(VALUES, 0.2), (GREEDY, 0.9)], ids=["values", "greedy"])
def test_the_target_is_the_value_of_what_the_reference_would_do(tiny_policy, monkeypatch, stage, target):
    """r = 0, γ = 1, Q(s') = (0.2, 0.9), and the reference prefers the first token with 0.7 to 0.3."""
    likely = torch.tensor([0.7, 0.3]).log()
    monkeypatch.setattr(action_value_columns, "compute_logits", lambda model, rows_BC: likely.repeat(len(rows_BC), 1))
    row = {"id": "r", "prompt": [{"role": "user", "content": "p"}], "answer": "ab"}
    batch = lay_out(tiny_policy, [row])
    monkeypatch.setattr(action_value_columns, "_take", lambda q_THV, ids_T: q_THV[:, :, 0] * 0)
    monkeypatch.setattr(action_value_columns, "_choose", lambda q_TV, ids_T: q_TV[torch.arange(len(ids_T)), ids_T % 2])
    use = stage.loss[0]
    loss = bind(use)
    columns = make_columns(Learner(Fixed(), slow=False), batch, loss.asks, tiny_policy.model)
    columns["reward_T"] = torch.zeros(len(batch.sampled_T))
    loss_T = loss.ask(0, columns)
    assert loss_T.tolist() == pytest.approx([target**2 / 2] * (len(loss_T) - 1) + [0.0])
    assert use.options["gamma"] == 1.0


def test_the_reference_is_the_model_that_the_values_start_from():
    assert VALUES.reference == VALUES.model == GREEDY.model == "start"
    values, greedy = (stage.model_dump() for stage in (VALUES, GREEDY))
    changed = {key for key in values if values[key] != greedy[key]}
    assert changed == {"loss", "reference"}
    assert [stage.loss[0].use for stage in (VALUES, GREEDY)] == ["reference_bellman", "greedy_bellman"]
    assert VALUES.loss[1:] == GREEDY.loss[1:]
    assert (VALUES.start, VALUES.heads) == ("logits", 1)
    assert REPORT.models == {"start": "start", "coder": "start", "greedy": "start", "policy": "policy"}
    uses = {name: use for name, (use,) in REPORT.logits_processors.items()}
    assert {name: use.options["values"] for name, use in uses.items()} == {"coder": "values", "greedy": "greedy"}
    assert {use.options["prior"] for use in uses.values()} == {0.0}
    assert len({use.options["beta"] for use in uses.values()}) == 1


def test_programs_of_people_and_of_the_model_are_learned_from_with_their_tests_as_reward():
    assert [source.from_ for source in STAGES["programs"].sources] == ["human", "generated"]
    assert VALUES.data == GREEDY.data == "programs"
    assert STAGES["start"].data == "human"
    assert STAGES["human"].prompts == STAGES["generated"].prompts == "exercises"
    generated = STAGES["generated"]
    (use,) = VALUES.rewards
    assert generated.model == "start"
    assert generated.min_reward <= min(use.options["failed"], use.options["invalid"])
    assert VALUES.rewards == REPORT.rewards == generated.rewards
    rows = bind(STAGES["drawn"].problems[0])()
    row = next(one for one in rows if one["answer"] == "p5 mul mul")
    texts = ["p5 mul mul", "mul p5 mul", "p5 mul add", "p5 mul", "p5 mul mul mul", "p5 times mul", ""]
    expected = [1.0, -0.3, -0.3, -1.0, -1.0, -1.0, -1.0]
    assert scores_of(bind(use), 0, {"rows": [row] * len(texts), "completions": texts}, {}) == expected
    assert run_program(["p5", "mul", "mul"], 3) == 225
    twice = row | {"metadata": json.dumps({"tests": [[2, 6], [3, 8]]})}
    both, first_alone = "add p2 add", "p2 p4 add"
    assert scores_of(bind(use), 0, {"rows": [twice] * 2, "completions": [both, first_alone]}, {}) == [1.0, -0.3]
    assert not {row["id"] for row in rows} & {row["id"] for row in bind(REPORT.tasks[0])()}
    assert STAGES["exercises"].data == "drawn"
    assert STAGES["exercises"].decontaminate is not None


def test_the_anchor_is_the_cross_entropy_of_the_policy_that_is_sampled(tiny_policy):
    """At the start that is the language model's own."""
    batch = lay_out(tiny_policy, bind(REPORT.tasks[0])()[:2])
    anchor = bind(VALUES.loss[1])
    columns = make_columns(Learner(make_network(tiny_policy), slow=False), batch, anchor.asks)
    packed = batch.packed
    hidden = packed_hidden(tiny_policy.model, packed)[packed.source_M[batch.sampled_T]]
    logp_TV = compute_logits(tiny_policy.model, hidden).log_softmax(-1)
    ids_T = packed.input_ids_M[batch.sampled_T]
    torch.testing.assert_close(anchor.ask(0, columns), -logp_TV.gather(-1, ids_T[:, None])[:, 0], atol=1e-4, rtol=0)
    assert VALUES.loss[1].options["temperature"] == VALUES.logits_scale


def test_programs_of_one_problem_are_several_rows(tmp_path):
    """`start` writes several programs for a problem, and a stage of kind data wants different ids."""
    sampled = [("a", "p3 add add"), ("b", "mul mul mul"), ("a", "p2 add add")]
    row = {"prompt": [{"role": "user", "content": "1>6"}], "answer": "", "family": "stack", "metadata": "{}"}
    rows = [row | {"id": i, "completion": [{"role": "assistant", "content": text}]} for i, text in sampled]
    write_rows(tmp_path, "chat", rows)
    made = read_query(STAGES["programs"].sources[1].query, {"rows": [tmp_path / "rows.parquet"]}, None)
    said = {record.values["id"]: record.values["completion"][0]["content"] for record in made}
    assert said == {"a:1": "p2 add add", "a:2": "p3 add add", "b:1": "mul mul mul"}


def test_policy_gradients_learn_from_as_many_of_the_same_programs():
    policy = STAGES["policy"]
    (rehearsed,) = policy.extra_samples
    assert (policy.model, policy.prompts, STAGES["attempted"].sources[0].from_) == ("start", "attempted", "generated")
    assert (policy.rollout.use, policy.rollout.options["data"]) == ("recorded", "generated")
    assert (rehearsed.use, rehearsed.options["data"]) == ("rehearse", "human")
    assert policy.rewards == VALUES.rewards
    assert policy.generation_batch_size + rehearsed.options["size"] == VALUES.per_device_train_batch_size
    assert policy.max_steps == VALUES.max_steps == GREEDY.max_steps
    assert policy.policy_loss.use == "reinforce"
    source_T = torch.tensor([SOURCES.index("expert"), SOURCES.index("auxiliary")])
    assert bind(policy.token_mask[0]).ask(0, {"source_T": source_T}).tolist() == [True, False]
    (imitated,) = policy.loss_terms
    assert bind(imitated.token_mask[0]).ask(0, {"source_T": source_T}).tolist() == [False, True]


def test_candidates_are_ranked_by_the_value_of_their_last_token(tiny_policy, monkeypatch):
    network = make_network(tiny_policy)
    monkeypatch.setattr(models, "load_cached_action_values", lambda folder: (network, tiny_policy))
    reward = bind(RANKED.selector, "selector", {"selector.model": Path("v")})
    rows = bind(RANKED.tasks[0])()[:1]
    texts = [rows[0]["answer"], "p2 add", "mul"]
    scores = scores_of(reward, 0, {"rows": rows * 3, "completions": texts}, {})
    for text, score in zip(texts, scores, strict=True):
        batch = lay_out(tiny_policy, [rows[0] | {"answer": text}])
        ids_T = batch.packed.input_ids_M[batch.sampled_T]
        assert score == pytest.approx(float(network(batch).q_XHV[-1, 0, ids_T[-1]].detach()), abs=1e-5)
    assert RANKED.num_generations == 8
    assert (RANKED.selector.options["model"], RANKED.selector.options["stat"]) == ("values", "last")
    assert RANKED.logits_processors["coder"] == REPORT.logits_processors["coder"]
