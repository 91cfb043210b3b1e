"""SUPO: a full context is replaced by a summary of the model, and one advantage trains all contexts of an episode.

Episodes are dictated by the script of a question; environment, contexts, rewards, mask and loss are those of the
recipe. Not shown: that summaries solve more than short contexts, which is measured.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import micro_loss, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.data.chat import decode, encode_prompt
from learning.lookup import bind
from learning.models.packed import choose_forward
from learning.models.policy import Policy
from schemas.recipe.load import load_recipe
from tests.papers.dictated import TOKENS, play

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "supo.yaml"
STAGES = load_recipe(RECIPE).stages
TRAINED, HISTORY, REPORT = STAGES["trained"], STAGES["history"], STAGES["report"]
BUDGET, LIMIT = (TRAINED.env.context.options[name] for name in ("budget", "limit"))


@pytest.fixture
def policy(tiny_policy):
    """Contexts of any length fit; a character is a token, as in the recipe."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4 * TOKENS)


@pytest.fixture(scope="module")
def question():
    """A question of five look-ups and its notes."""
    use = STAGES["questions"].problems[0].model_copy(update={"memories": True})
    row = next(row for row in bind(use)() if len(json.loads(row["metadata"])["script"]) == 6)
    return row, json.loads(row["metadata"])


def act(notes, wasted=0):
    """An agent that follows the script of a question, after `wasted` other searches, and summarises when asked to."""
    script, done = ["search: nothing at all"] * wasted + notes["script"], []

    def write(contexts):
        if contexts[-1].endswith(" sum"):
            return ["0", *notes["memories"]][max(len(done) - wasted, 0)]
        done.append(script[len(done)])
        return done[-1]

    return write


def list_asked(sample):
    """For every turn but the last: the tokens of its context with it, and whether a summary or an action followed."""
    at, rows, prompt, start = 0, [], len(sample.prompt_ids), 0
    for turn in sample.turns[:-1]:
        at += turn.sampled
        rows.append((prompt + at - start, "rebuilt" if turn.rebuilt else turn.asks))
        if turn.rebuilt:
            prompt, start = 0, at
        at += turn.observed
    return rows


def test_a_summary_is_asked_for_when_the_context_is_full_and_replaces_it(policy, question):
    row, notes = question
    (sample,), contexts = play(policy, TRAINED, row, [act(notes)])
    text = row["prompt"][0]["content"]
    assert (sample.finish, sample.reward, len(sample.contexts)) == ("stop", 1.0, 3)
    asked = list_asked(sample)
    assert {follows for _, follows in asked} == {"action", "memory", "rebuilt"}
    assert all((tokens >= BUDGET) == (follows == "memory") for tokens, follows in asked if follows != "rebuilt")
    # After a summary the context is the question and the summary, and nothing else that happened.
    after = [context for before, context in pairwise(contexts[0]) if before.endswith(" sum")]
    known = [notes["memories"][1], notes["memories"][3]]
    assert after == [f"{text} {memory}" for memory in known]
    _, grown = play(policy, HISTORY, row, [notes["script"]])
    assert len(grown[0][-1]) > 1.4 * max(map(len, contexts[0]))


def weigh(samples, rows, *, mask=TRAINED.mask_truncated_completions):
    """The batch of samples with the advantages and weights of the recipe, and its algorithm."""
    inputs = {port.path: Path("p") for port in load_recipe(RECIPE).ports("trained")}
    algorithm = bind_algorithm(TRAINED.model_copy(update={"loss_terms": []}), inputs)
    batch = with_dropped(forest(samples), mask)
    batch = with_advantages(algorithm, batch, 0, states={}, rows=rows)
    batch = with_weights(algorithm, batch, 0, TRAINED.max_completion_length)
    return algorithm, batch.with_tokens(lp_prox=batch.sampled("lp_behav"))


def test_one_advantage_trains_all_segments_of_a_rollout_and_counts_it_once(policy, question):
    """Rewards 1 and 0 of three segments and one: ±1 in units of the spread of two rollouts, not of four segments."""
    row, notes = question
    samples, _ = play(policy, TRAINED, row, [act(notes), ["never"]])
    assert ([len(sample.contexts) for sample in samples], [s.reward for s in samples]) == ([3, 1], [1.0, 0.0])
    _, batch = weigh(samples, [row, row])
    advantage_T, path_T = batch.sampled("advantage"), batch.path_T
    expected = 0.5 / (0.5**0.5 + 1e-4)
    assert advantage_T[path_T == 0].tolist() == pytest.approx([expected] * int((path_T == 0).sum()))
    assert advantage_T[path_T == 1].tolist() == pytest.approx([-expected] * int((path_T == 1).sum()))
    # Calls, summaries and the answer are trained on, and nothing that the tool returned.
    written = [*notes["script"], notes["memories"][1], notes["memories"][3]]
    assert sum(samples[0].own) == int((path_T == 0).sum()) == sum(len(turn) + 1 for turn in written)
    assert sum(turn.observed for turn in samples[0].turns) == len(samples[0].own) - sum(samples[0].own)


def test_the_gradient_is_that_of_the_product_of_the_segments_likelihoods(policy, question):
    """At the sampling policy: A/T · ∇ log Π p(segment | its context), a mean over two rollouts."""
    row, notes = question
    samples, _ = play(policy, TRAINED, row, [act(notes), ["never"]])
    model = policy.model.double()
    segments = [[split(sample, context, rest) for context, rest in sample.contexts] for sample in samples]
    assert [len(of) for of in segments] == [3, 1]

    def likelihood(prompt, ids, own):
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[torch.tensor(own), 0]

    for sample, of in zip(samples, segments, strict=True):
        with torch.no_grad():
            own = torch.cat([likelihood(*segment) for segment in of]).tolist()
        taken = iter(own)
        sample.logprobs = [next(taken) if flag else 0.0 for flag in sample.own]
    algorithm, batch = weigh(samples, [row, row])
    choose_forward(model)
    micro_loss(algorithm, model, batch, step=0, temperature=1.0)[0].backward()
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    expected = 0.5 / (0.5**0.5 + 1e-4)
    for sign, sample, of in zip((1, -1), samples, segments, strict=True):
        product = torch.stack([likelihood(*segment).sum() for segment in of]).sum()
        (-sign * expected / sum(sample.own) / 2 * product).backward()
    for got, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(got, parameter.grad, atol=1e-8, rtol=1e-5)


def split(sample, context, rest):
    """The prompt of a context, the tokens after it, and which of them the model wrote."""
    ids = sample.completion_ids
    prompt = ids[context.start : context.stop] or sample.prompt_ids
    return prompt, ids[rest.start : rest.stop], list(sample.own)[rest.start : rest.stop]


def test_a_rollout_that_uses_up_its_summaries_has_no_weight_in_any_segment(policy, question):
    """Without the mask it would have: it is truncated, and its reward 0 is below the mean."""
    row, notes = question
    patient = TRAINED.env.model_copy(update={"max_turns": 20})
    samples, _ = play(policy, TRAINED, row, [act(notes), act(notes, wasted=2)], patient)
    lost = samples[1]
    assert (lost.finish, lost.num_turns) == ("length", 6)  # the script has two searches more
    assert (sum(turn.asks == "memory" for turn in lost.turns), len(lost.contexts)) == (LIMIT, LIMIT + 1)
    weights = {}
    for mask in (TRAINED.mask_truncated_completions, False):
        _, batch = weigh(samples, [row, row], mask=mask)
        weights[mask] = [batch.sampled("w")[batch.path_T == path].abs() for path in (0, 1)]
        assert (batch.sampled("advantage")[batch.path_T == 1] < 0).all()
    assert (weights[True][0] > 0).all()
    assert not weights[True][1].any()
    assert (weights[False][1] > 0).all()


def test_more_summaries_at_test_time_solve_what_training_cannot(policy, question):
    row, notes = question
    more = REPORT.envs["more_summaries"]
    few = REPORT.env.model_copy(update={"max_turns": more.max_turns})
    for env, ended in ((few, ("length", 0.0)), (more, ("stop", 1.0))):
        (sample,), _ = play(policy, TRAINED, row, [act(notes, wasted=2)], env)
        assert (sample.finish, sample.reward) == ended
    settings = {name: env.model_dump() for name, env in REPORT.envs.items()}
    trained, longer = TRAINED.env.model_dump(), settings["more_summaries"]
    assert REPORT.env == TRAINED.env
    assert longer["context"].pop("limit") > trained["context"].pop("limit") == 2
    assert longer.pop("max_turns") > trained.pop("max_turns")
    assert longer == trained


def test_the_cold_start_learns_in_the_contexts_of_training(policy):
    """Every lesson's prompt is the context that an episode of the longer environment shows at that turn."""
    lessons = bind(STAGES["summary_lessons"].problems[0])()
    starts = [i for i, row in enumerate(lessons) if row["id"].endswith(".0")]
    summaries = 0
    for start, end in pairwise(starts[:60]):
        rows = lessons[start:end]
        notes = json.loads(rows[0]["metadata"])
        _, contexts = play(policy, TRAINED, rows[0], [act(notes)], REPORT.envs["more_summaries"])
        assert contexts[0] == [decode(policy.tokenizer, encode_prompt(policy.tokenizer, row["prompt"])) for row in rows]
        summaries += sum(json.loads(row["metadata"])["asks"] == "memory" for row in rows)
    assert summaries > 10


def test_the_history_differs_in_the_context_and_in_nothing_else():
    trained, history = (stage.model_dump(exclude={"model"}) for stage in (TRAINED, HISTORY))
    assert trained["env"].pop("context")["use"] == "summary"
    assert history["env"].pop("context") is None
    assert trained == history
    starts = [STAGES[name].model_dump(exclude={"data"}) for name in ("with_summaries", "with_history")]
    assert starts[0] == starts[1]
    assert REPORT.envs["history"] == HISTORY.env
    worlds = [use.model_dump()["of"]["world"] for use in STAGES["summary_lessons"].problems]
    assert worlds == [use.model_dump()["of"]["world"] for use in STAGES["history_lessons"].problems] == [1, 2, 3, 4]
    asked = {row["id"] for row in bind(STAGES["questions"].problems[0])()}
    assert not asked & {row["id"] for row in bind(REPORT.tasks[0])()}
