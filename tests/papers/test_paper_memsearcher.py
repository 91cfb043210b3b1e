"""MemSearcher: an action sees the question and a memory that the model rewrites, and one advantage trains all contexts.

Episodes are dictated by the script of a question, the environment, contexts, rewards and advantages are those of the
recipe. Not shown: reasoning before an action, and that memories are better than histories, which is measured.
"""

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
from learning.models.policy import Policy
from learning.toy_tasks.atlas import list_texts, make_atlas
from schemas.recipe.load import load_recipe
from tests.papers.dictated import TOKENS, play

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "memsearcher.yaml"
STAGES = load_recipe(RECIPE).stages
TRAINED, HISTORY = STAGES["trained"], STAGES["history"]


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer matters; contexts of any length fit."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4 * TOKENS)


@pytest.fixture(scope="module")
def question():
    """A question of three look-ups, with a script of searches and memories, and one of searches only."""
    use = STAGES["questions"].problems[0]
    with_memories = use.model_copy(update={"memories": True})
    rows = {row["id"]: row for row in bind(use)()}
    both = next(row for row in bind(with_memories)() if json.loads(row["metadata"])["hops"] == 3)
    notes = json.loads(both["metadata"])
    return rows[both["id"]], weave(notes), notes["script"]


def weave(notes):
    """A script of searches, each with its memory after it, and the answer."""
    *searches, answer = notes["script"]
    return [turn for pair in zip(searches, notes["memories"], strict=True) for turn in pair] + [answer]


def test_an_action_sees_the_question_and_the_memory_only(policy, question):
    row, script, _ = question
    (sample,), contexts = play(policy, TRAINED, row, [script])
    text, results = row["prompt"][0]["content"], json.loads(row["metadata"])["trail"]
    documents = list_texts(make_atlas(15, 0))
    seen = [[document for document in documents if document in context] for context in contexts[0]]
    # Search, memory, search, memory, search, memory, answer: a document is seen by the memory after it alone.
    assert [len(found) for found in seen] == [0, 1, 0, 1, 0, 1, 0]
    assert (sample.finish, sample.num_turns, sample.text) == ("stop", 4, row["answer"])
    for number, context in enumerate(contexts[0][3::2], 1):
        assert f"{text} {number} {results[number - 1]} {seen[2 * number + 1][0]}" in context
    for number, context in enumerate(contexts[0][2::2], 1):
        assert f"{text} {number} {results[number - 1]}" in context
        assert not any(earlier in context.replace(text, "") for earlier in results[: number - 1])


def test_contexts_stay_short_where_those_of_a_history_grow(policy, question):
    row, script, searches = question
    _, contexts = play(policy, TRAINED, row, [script])
    _, grown = play(policy, HISTORY, row, [searches])
    actions = [len(context) for context in contexts[0][::2]]
    assert max(actions) - min(actions) <= len(" 3 ") + 3
    lengths = [len(context) for context in grown[0]]
    steps = [after - before for before, after in pairwise(lengths)]
    assert len(steps) == 3
    assert min(steps) > max(actions) - min(actions)
    assert max(map(len, contexts[0])) < lengths[2]


def test_the_reward_is_zero_a_tenth_or_f1(policy, question):
    row, script, _ = question
    answer = row["answer"]
    scripts = [
        script,
        ["never"],
        ["find: x", "1 x", answer],
        [f"never {answer}"],
        [*script[:2] * 5, *script[:2]],
    ]
    samples, _ = play(policy, TRAINED, row, scripts)
    assert [sample.reward for sample in samples] == pytest.approx([1.0, 0.1, 0.0, 2 / 3, 0.0])
    assert samples[-1].finish == "length"


def test_one_advantage_trains_every_context_of_an_episode_and_counts_it_once(policy, question):
    """Rewards 1 and 0.1 of seven contexts and one: normalised over the two episodes."""
    row, script, _ = question
    samples, _ = play(policy, TRAINED, row, [script, ["never"]])
    assert [len(sample.contexts) for sample in samples] == [7, 1]
    inputs = {port.path: Path("p") for port in load_recipe(RECIPE).ports("trained")}
    algorithm = bind_algorithm(TRAINED, inputs)
    batch = forest(samples)
    advantage_T = with_advantages(algorithm, batch, 0, states={}, rows=[row, row]).sampled("advantage")
    expected = 0.45 / (2**0.5 * 0.45 + 1e-4)
    assert advantage_T[batch.path_T == 0].tolist() == pytest.approx([expected] * sum(samples[0].own))
    assert advantage_T[batch.path_T == 1].tolist() == pytest.approx([-expected] * sum(samples[1].own))
    # Only what the model wrote is trained on: searches, memories and the answer, each with its end.
    assert int((batch.path_T == 0).sum()) == sum(
        len(encode_completion(policy.tokenizer, [{"role": "assistant", "content": turn}])) for turn in script
    )
    assert torch.isfinite(advantage_T).all()


def test_the_cold_start_learns_in_the_contexts_of_training(policy):
    """Every lesson's prompt is the context that an episode shows at that turn."""
    lessons = bind(STAGES["memory_lessons"].problems[0])()
    starts = [i for i, row in enumerate(lessons) if row["id"].endswith(".0")]
    for start, end in pairwise(starts[:20]):
        rows = lessons[start:end]
        script = weave(json.loads(rows[0]["metadata"]))
        assert [json.loads(row["metadata"])["turn"] for row in rows] == list(range(len(script)))
        problem = rows[0] | {"prompt": rows[0]["prompt"]}
        _, contexts = play(policy, TRAINED, problem, [script])
        shown = [decode(policy.tokenizer, encode_prompt(policy.tokenizer, row["prompt"])) for row in rows]
        assert contexts[0] == shown


def test_histories_differ_in_the_context_and_in_nothing_else():
    trained, history = (stage.model_dump(exclude={"model"}) for stage in (TRAINED, HISTORY))
    assert trained["env"].pop("context")["use"] == "memory"
    assert history["env"].pop("context") is None
    # The limit is of each context with a memory, and of the episode without.
    assert (trained.pop("max_completion_length"), history.pop("max_completion_length")) == (96, 192)
    assert trained == history
    starts = [STAGES[name].model_dump(exclude={"data"}) for name in ("with_memory", "with_history")]
    assert starts[0] == starts[1]
    lessons = [[use.model_dump() for use in STAGES[f"{name}_lessons"].problems] for name in ("memory", "history")]
    for with_memory, without in zip(*lessons, strict=True):
        assert with_memory["of"].pop("memories") is True
        assert with_memory["env"].pop("context")
        without["env"].pop("context", None)
        assert with_memory == without


def test_questions_of_training_lessons_and_report_are_disjoint():
    asked = bind(STAGES["questions"].problems[0])()
    reported = bind(STAGES["report"].tasks[0])()
    assert not {row["id"] for row in asked} & {row["id"] for row in reported}
    worlds = [use.model_dump()["of"]["world"] for use in STAGES["memory_lessons"].problems]
    assert 0 not in worlds
    assert STAGES["report"].tasks == STAGES["report_history"].tasks
    models = [dict(STAGES[name].models) for name in ("report", "report_history")]
    assert [set(one) for one in models] == [{"start", "trained"}] * 2
