"""MEM1: one internal state, rewritten in every turn, is all that a later turn sees, and PPO trains it on the outcome.

Episodes are dictated; the problems, the environment, the contexts, the rewards and the advantages are those of the
recipe. Not shown: that states are better than histories, which is measured.
"""

import copy
import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.data.chat import decode, encode_completion, encode_prompt
from learning.lookup import bind
from learning.models.packed import choose_forward, packed_logprobs
from learning.models.policy import Policy
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample
from schemas.recipe.load import load_recipe
from tests.papers.dictated import TOKENS, play

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "mem1.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
TRAINED, HISTORY, REPORT = STAGES["trained"], STAGES["history"], STAGES["report"]
QUESTION = [40, 41, 42, 43, 44]
STATES, ACTIONS, RESULTS = (
    [[50, 51, 52], [53, 54], [55, 56, 57]],
    [[60, 61], [62, 63, 64], [65]],
    [[70, 71], [72, 73, 74]],
)
"""Of an episode of three turns: a state, an action, and the result of all but the last."""


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer matters; contexts of any length fit."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 10 * TOKENS)


def problem(objectives, hops=None):
    """A problem of the report with so many questions, and its script."""
    use = STAGES["questions"].problems[0].model_copy(update={"objectives": objectives})
    rows = [(row, json.loads(row["metadata"])) for row in bind(use)()]
    row, notes = next((row, notes) for row, notes in rows if hops is None or notes["hops"] == hops)
    return row, notes["script"]


def test_problems_are_composed_of_questions_in_their_order():
    single = {
        row["prompt"][0]["content"]: row
        for row in bind(STAGES["questions"].problems[0].model_copy(update={"objectives": 1}))()
    }
    rows = bind(STAGES["questions"].problems[0])()
    assert len({row["id"] for row in rows}) == len(rows) == 100
    for row in rows:
        parts = [f"{part}?" for part in row["prompt"][0]["content"].removesuffix("?").split("? ")]
        assert len(parts) == len(set(parts)) == 2
        assert row["answer"].split(";") == [single[part]["answer"] for part in parts]
        searches = [
            turn.rpartition("</state>")[2]
            for part in parts
            for turn in json.loads(single[part]["metadata"])["script"][:-1]
        ]
        script = json.loads(row["metadata"])["script"]
        assert [turn.rpartition("</state>")[2] for turn in script[:-1]] == searches
    asked = [part for row in rows for part in row["prompt"][0]["content"].removesuffix("?").split("? ")]
    assert {asked.count(part) for part in asked} == {2}


def test_without_a_tag_the_script_has_the_calls_alone():
    use = STAGES["questions"].problems[0]
    for tagged, plain in zip(bind(use)(), bind(use.model_copy(update={"tag": None}))(), strict=True):
        turns, calls = (json.loads(row["metadata"])["script"] for row in (tagged, plain))
        assert calls == [turn.rpartition("</state>")[2] for turn in turns]
        assert "<state>" in turns[0]


def test_a_turn_sees_the_question_its_state_and_the_last_result_only(policy):
    row, script = problem(2, hops=4)
    (sample,), contexts = play(policy, TRAINED, row, [script])
    assert (sample.finish, sample.reward, sample.num_turns, len(sample.contexts)) == ("stop", 1.0, 5, 5)
    text = row["prompt"][0]["content"]
    first = row["answer"].split(";")[0]
    states = [turn.partition("<state>")[2].partition("</state>")[0] for turn in script[:-1]]
    assert states[0] == "|0"
    assert states[2] == f"{first}|0"
    for number, context in enumerate(contexts[0][1:], 1):
        assert f"{text} {states[number - 1]} " in context
        assert not any(f" {state} " in context for state in states[: number - 1])


def test_contexts_are_as_short_for_eight_questions_as_for_two_and_a_history_grows(policy):
    """Without the question itself; the answers so far are a part of the state. A history of eight has no room here."""
    peaks = {}
    for stage, env in ((TRAINED, REPORT.env), (HISTORY, HISTORY.env.model_copy(update={"max_turns": 20}))):
        for objectives in (2, 8):
            row, script = problem(objectives)
            (sample,), contexts = play(policy, stage, row, [script], env)
            assert sample.finish == ("length" if stage is HISTORY and objectives == 8 else "stop")
            question = len(row["prompt"][0]["content"])
            peaks[stage is TRAINED, objectives] = max(len(context) - question for context in contexts[0])
    cap = TRAINED.max_completion_length
    assert max(peaks[True, 2], peaks[True, 8]) <= cap
    assert peaks[False, 8] > 1.5 * peaks[False, 2] > cap


def test_the_reward_is_the_share_of_questions_with_their_own_right_answer(policy):
    row, script = problem(2)
    first, second = row["answer"].split(";")
    scripts = [script, [f"{first};never"], [f"{second};{first}"], ["never"], [*script[:1] * 8]]
    samples, _ = play(policy, TRAINED, row, scripts)
    assert [sample.reward for sample in samples] == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert samples[-1].finish == "length"


def written():
    """A sample of three turns, whose later contexts are the question, the last state and the last result."""
    ids, turns = [], []
    for state, action, result in zip(STATES, ACTIONS, [*RESULTS, []], strict=True):
        context = [*QUESTION, *state, *result] if result else []
        ids += [*state, *action, *context]
        turns.append(Turn(len(state) + len(action), len(context), rebuilt=bool(context)))
    made = Sample({"id": "a"}, 0, "policy", list(QUESTION), ids, [-1.0] * len(ids), "stop", "", turns=turns)
    made.versions, made.scores, made.reward = [0] * len(ids), {"r": 1.0}, 1.0
    return made


def read_pruned(model):
    """Log-probabilities of every turn's tokens on its own pruned prompt."""
    found = []
    for k, (state, action) in enumerate(zip(STATES, ACTIONS, strict=True)):
        prompt = [*QUESTION, *(STATES[k - 1] + RESULTS[k - 1] if k else [])]
        ids = [*prompt, *state, *action]
        lp = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        found += [float(lp[i - 1, ids[i]]) for i in range(len(prompt), len(ids))]
    return found


def read_stitched(model, *, pruned=True):
    """The same from one sequence of everything, under a mask like that of the paper's code.

    A turn sees the question, the last state, the last result and itself; positions are those of the turn's pruned
    prompt. Not `pruned`: a causal mask.
    """
    ids, kinds = list(QUESTION), [("q", 0)] * len(QUESTION)
    for k, of in enumerate(zip(STATES, ACTIONS, [*RESULTS, []], strict=True)):
        for kind, tokens in zip("sai", of, strict=True):
            ids, kinds = ids + tokens, kinds + [(kind, k)] * len(tokens)

    def sees(query, key):
        (a, i), (b, j) = query, key
        own = j == i and (a != "i" or b != "a")
        return not pruned or b == "q" or own or (a != "i" and j == i - 1 and b in "si")

    size = len(ids)
    mask = torch.tensor(
        [
            [
                key <= query and (kinds[query][0] != "q" or kinds[key][0] == "q") and sees(kinds[query], kinds[key])
                for key in range(size)
            ]
            for query in range(size)
        ]
    )
    found = []
    for k in range(3):
        own = [i for i, (kind, turn) in enumerate(kinds) if kind in "sa" and turn == k]
        seen = [i for i in range(size) if mask[own[-1], i]] if pruned else list(range(size))
        positions = torch.zeros(1, size, dtype=torch.long)
        positions[0, seen] = torch.arange(len(seen))
        bias = torch.zeros(1, 1, size, size).masked_fill(~mask, torch.finfo(torch.float32).min)
        lp = model(torch.tensor([ids]), attention_mask=bias, position_ids=positions).logits[0].log_softmax(-1)
        before = [seen[seen.index(i) - 1] for i in own]
        if pruned and k:  # what precedes a turn in its own prompt is the last result
            assert kinds[before[0]] == ("i", k - 1)
        found += [float(lp[b, ids[i]]) for b, i in zip(before, own, strict=True)]
    return found


@pytest.mark.parametrize("layers", [1, 2])
def test_every_turn_is_computed_under_the_context_that_was_there(tiny_policy, layers):
    """Ours equals the pruned prompts for any depth; the stitched mask for one layer only, a causal mask for none."""
    config = copy.deepcopy(tiny_policy.model.config)
    config.num_hidden_layers = layers
    config.layer_types = config.layer_types[:layers]
    torch.manual_seed(0)
    model = type(tiny_policy.model)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(4)
        choose_forward(model)
        batch = forest([written()])
        ours = packed_logprobs(model, batch.packed)[0][batch.sampled_T].tolist()
        pruned, stitched = read_pruned(model), read_stitched(model)
        causal = read_stitched(model, pruned=False)
    assert len(ours) == sum(map(len, STATES + ACTIONS))
    assert ours == pytest.approx(pruned, abs=1e-5)
    gap = max(abs(a - b) for a, b in zip(stitched, pruned, strict=True))
    assert gap < 1e-5 if layers == 1 else gap > 1e-3
    assert max(abs(a - b) for a, b in zip(causal, pruned, strict=True)) > 1e-3


def test_only_states_actions_and_the_answer_are_trained_on(policy):
    row, script = problem(2)
    (sample,), _ = play(policy, TRAINED, row, [script])
    tokens = [len(encode_completion(policy.tokenizer, [{"role": "assistant", "content": turn}])) for turn in script]
    assert sum(sample.own) == sum(tokens) == len(forest([sample]).sampled_T)


def test_one_gae_runs_through_all_contexts_to_the_outcome(policy):
    """Values of 0.1, 0.2, … along the episode; the successor of a turn's last token is the first of the next turn."""
    row, script = problem(2)
    samples, _ = play(policy, TRAINED, row, [script, ["never"]])
    batch = forest(samples)
    value_T = torch.linspace(0.1, 0.9, len(batch.sampled_T), dtype=torch.float64)
    batch = batch.with_tokens(value=value_T).with_paths(value_end=torch.zeros(2, dtype=torch.float64))
    algorithm = bind_algorithm(TRAINED, {port.path: Path("p") for port in LOADED.ports("trained")})
    advantage_T = with_advantages(algorithm, batch, 0).sampled("advantage")
    expected = []
    for path, sample in enumerate(samples):
        values, later, of = value_T[batch.path_T == path].tolist(), 0.0, []
        for i in range(len(values) - 1, -1, -1):
            last = i == len(values) - 1
            delta = (sample.reward if last else values[i + 1]) - values[i]
            later = delta + 0.95 * later
            of.insert(0, later)
        expected += of
    flat = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(advantage_T, (flat - flat.mean()) / (flat.std() + 1e-8), atol=1e-9, rtol=1e-9)
    assert (TRAINED.ratio.use, TRAINED.policy_loss.use, TRAINED.policy_loss.options["epsilon"]) == (
        "token",
        "clipped",
        0.2,
    )


def test_the_cold_start_learns_in_the_contexts_of_training(policy):
    """Every lesson's prompt is the context that an episode shows at that turn."""
    lessons = bind(STAGES["state_lessons"].problems[0])()
    starts = [i for i, row in enumerate(lessons) if row["id"].endswith(".0")]
    for start, end in pairwise(starts[:20]):
        rows = lessons[start:end]
        _, contexts = play(policy, TRAINED, rows[0], [json.loads(rows[0]["metadata"])["script"]])
        shown = [decode(policy.tokenizer, encode_prompt(policy.tokenizer, row["prompt"])) for row in rows]
        assert contexts[0] == shown


def test_histories_differ_in_the_context_and_in_nothing_else():
    trained, history = (stage.model_dump(exclude={"model"}) for stage in (TRAINED, HISTORY))
    assert trained["env"].pop("context")["use"] == "state"
    assert history["env"].pop("context") is None
    assert (trained.pop("max_completion_length"), history.pop("max_completion_length")) == (64, 320)
    assert trained == history
    starts = [STAGES[name].model_dump(exclude={"data"}) for name in ("with_state", "with_history")]
    assert starts[0] == starts[1]
    assert [STAGES[name].data for name in ("with_state", "with_history")] == ["state_lessons", "history_lessons"]
    assert [task.options["objectives"] for task in REPORT.tasks] == [2, 4, 8]
    assert REPORT.tasks[:1] == STAGES["report_history"].tasks


def test_questions_of_training_lessons_and_report_are_disjoint():
    asked = {
        part for row in bind(STAGES["questions"].problems[0])() for part in row["prompt"][0]["content"].split("? ")
    }
    held_out = {part for row in bind(REPORT.tasks[0])() for part in row["prompt"][0]["content"].split("? ")}
    assert not {part.rstrip("?") for part in asked} & {part.rstrip("?") for part in held_out}
    worlds = [use.model_dump()["of"]["world"] for use in STAGES["state_lessons"].problems]
    assert worlds == [use.model_dump()["of"]["world"] for use in STAGES["history_lessons"].problems] == [1, 2, 3, 4]
