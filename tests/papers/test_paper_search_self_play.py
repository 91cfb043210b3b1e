"""SSP: questions about known answers are checked against what their proposer has read, tried, and paid for failures.

Turns are dictated; tools, checker, turn order, rewards and advantages are those of the recipe. Not shown: real QA.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.data.chat import decode, encode_completion
from learning.lookup import bind
from learning.models.policy import Policy
from learning.rl.team import role_columns, select_trained
from learning.samples.conversation import RoleTurn
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.conversations import ConversationSampler
from learning.sampling.scoring import scores_of
from learning.sampling.speakers import close_speakers, make_speakers
from learning.toy_tasks.encyclopaedia import fact_reader
from schemas.recipe.load import load_recipe

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "search-self-play.yaml")
STAGES = LOADED.stages
TRAINED = STAGES["trained"]
OTHERS = [f"{name} river fir" for name in ("gus", "lom", "nip", "rad", "sol", "tug", "vim", "pod")]
DOCUMENTS = ["bam river zed", "tok twin bam", "fir trade gum", *OTHERS]
ROW = {
    "id": "a",
    "prompt": [{"role": "user", "content": "pose zed"}],
    "answer": "zed",
    "family": "answer",
    "metadata": json.dumps({"documents": DOCUMENTS}),
}


class Dictated:
    """An engine that writes the turns of proposers, one list for each, and the answers of all attempts in order."""

    def __init__(self, tokenizer, proposers, attempts):
        self.tokenizer, self.proposers, self.attempts, self.seen = tokenizer, proposers, list(attempts), []

    def generate(self, requests, sampling):
        return [[self.write(request, request.first + i) for i in range(request.n)] for request in requests]

    def write(self, request, number):
        self.seen.append(decode(self.tokenizer, [*request.prompt_ids, *request.begun]))
        turns = self.seen[-1].count("search:")
        text = self.proposers[number][turns] if "pose" in self.seen[-1] else self.attempts.pop(0)
        ids = encode_completion(self.tokenizer, [{"role": "assistant", "content": text}])
        return Generation(ids, [-1.0] * len(ids), "stop")


@pytest.fixture
def play(tiny_policy):
    """Play episodes of one answer in a stage, one for each proposer; return the samples and what was seen."""
    policy = Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)

    def play_them(proposers, attempts, row=ROW, stage=TRAINED):
        engine = Dictated(policy.tokenizer, proposers, attempts)
        speakers = make_speakers(stage.roles, {"model": (policy, engine)}, {})
        order = bind(stage.turn_order, "turn_order")
        limits = {"turn_order": order, "max_turns": stage.turn_order.max_turns, "speakers": speakers}
        sampler = ConversationSampler(engine, policy, Sampling(1.0, 900), 0, 0, **limits)
        samples = sampler.sample([SampleRequest(row, len(proposers))])
        close_speakers(speakers.values())
        (reward,) = (bind(use) for use in stage.rewards)
        supplies = {"rows": [row] * len(samples), "completions": [s.text for s in samples], "samples": samples}
        for sample, value in zip(samples, scores_of(reward, 0, supplies, {}), strict=True):
            sample.scores, sample.reward = {reward.name: value}, value
        return samples, engine.seen

    return play_them


ASKS = ["search: bam", "river of bam?"]


def rewards(samples, role):
    return [sample.reward for sample in samples if sample.role == role]


def advantages(samples, stage=TRAINED):
    """The advantage of every trained sample, by the role; all its tokens have it."""
    own = select_trained(samples, "model")
    batch = forest(own).with_paths(**role_columns(own, samples))
    batch = with_advantages(bind_algorithm(stage, {}), batch, 0, states={}, rows=[one.row for one in own])
    found = {"proposer": [], "solver": []}
    for path, sample in enumerate(own):
        values = batch.sampled("advantage")[batch.path_T == path]
        assert bool((values == values[0]).all())
        found[sample.role].append(values[0].item())
    return found


@pytest.mark.parametrize(
    ("answers", "earned"),
    [(["zed", "no", "no", "zed"], 0.5), (["zed"] * 4, 0.0), (["no"] * 4, 1.0), (["zed", "zed", "zed", "no"], 0.25)],
)
def test_a_question_earns_the_share_of_attempts_that_fail(play, answers, earned):
    samples, _ = play([ASKS], answers)
    assert rewards(samples, "proposer") == [earned]
    assert rewards(samples, "solver") == [float(text == "zed") for text in answers]


@pytest.mark.parametrize(
    "asks",
    [["search: bam", "river of bam"], ["search: bam", "river of bam?\ntwin of tok?"], ["search: bam", "river of zed?"]],
)
def test_a_malformed_question_gets_the_penalty_and_never_reaches_the_solver(play, asks):
    samples, seen = play([asks], [])
    assert [sample.role for sample in samples] == ["proposer"]
    assert rewards(samples, "proposer") == [LOADED.stages["trained"].rewards[0].options["otherwise"]] == [0.0]
    assert all("pose zed" in context for context in seen)


def test_a_question_is_tried_only_if_what_its_proposer_has_read_answers_it(play):
    """Without bam's document the same question is rejected; a search that finds it admits the question."""
    for missing in (
        ["river of bam?"],
        ["search: fir", "river of bam?"],
        ["search: gum", "search: lom", "river of bam?"],
    ):
        samples, _ = play([missing], [])
        assert [(sample.role, sample.reward) for sample in samples] == [("proposer", 0.0)]
    assert len(play([["search: bam", "search: fir", "river of bam?"]], ["zed"] * 4)[0]) == 5
    samples, seen = play([["search: fir", "search: bam", "river of bam?"]], ["zed"] * 4)
    assert [sample.role for sample in samples] == ["proposer"] + ["solver"] * 4
    # The solver is shown the question alone.
    assert all("river of bam?" in context and "zed" not in context for context in seen[3:])
    # A question about another answer is rejected, too.
    assert len(play([["search: bam", "twin of tok?"]], [])[0]) == 1


def test_a_question_that_contains_its_answer_is_rejected(play):
    """Even where its documents answer it."""
    row = ROW | {"metadata": json.dumps({"documents": ["zed twin zed", "bam twin zed"]})}
    assert fact_reader("zed twin zed\ntwin of zed?") == "zed"
    assert len(play([["search: zed", "twin of zed?"]], [], row)[0]) == 1
    assert len(play([["search: zed", "twin of bam?"]], ["zed"] * 4, row)[0]) == 5


def test_the_checker_reads_all_documents_of_the_proposer_among_others_without_the_answer():
    order = bind(TRAINED.turn_order, "turn_order")
    (tool,) = TRAINED.roles["proposer"].env.options["tools"]
    assert (tool["top"], tool["ranking"]) == (2, "bm25")
    replies = ("bam river zed\ntok twin bam", "bam river zed\nfir trade gum")
    turns = [RoleTurn("proposer", "river of bam?", observed=replies)]
    supplies = {"roles": list(TRAINED.roles), "turns": turns, "row": ROW}
    made = [order.ask(0, supplies | {"rng": np.random.default_rng(seed)}) for seed in range(12)]
    shown = [one.message.splitlines() for one in made]
    assert {one.role for one in made} == {"checker"}
    for lines in shown:
        assert lines[-1] == "river of bam?"
        assert len(lines) == len(set(lines)) == 3 + TRAINED.turn_order.options["noise"] + 1 == 8
        assert {*DOCUMENTS[:3]} < {*lines}
        assert {*lines[:-1]} <= {*DOCUMENTS}
    assert len({tuple(lines) for lines in shown}) == 12
    assert {fact_reader(one.message) for one in made} == {"zed"}


def test_a_single_proposer_learns_by_its_own_reward_and_attempts_by_their_group(play):
    """REINFORCE has a gradient for a group of one, where GRPO has none."""
    samples, _ = play([ASKS], ["zed", "no", "no", "zed"])
    found = advantages(samples)
    assert found["proposer"] == [0.5]
    assert found["solver"] == pytest.approx([0.866, -0.866, -0.866, 0.866], abs=1e-3)
    grpo = TRAINED.model_copy(update={"advantage": TRAINED.advantage[:2]})
    assert advantages(samples, grpo)["proposer"] == [0.0]
    assert TRAINED.num_generations == 1


def test_questions_of_several_episodes_are_not_compared(play):
    samples, _ = play([ASKS, ["search: tok", "twin of tok?"], ASKS], ["zed", "zed", *["no", "zed"] * 3])
    assert rewards(samples, "proposer") == [0.75, 0.0, 0.0]
    found = advantages(samples)
    assert found["proposer"] == [0.75, 0.0, 0.0]
    assert found["solver"] == pytest.approx([1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0], abs=1e-3)


@pytest.mark.parametrize(("name", "trained"), [("solver_only", "solver"), ("proposer_only", "proposer")])
def test_the_other_side_is_frozen_and_nothing_else_differs(play, name, trained):
    samples, _ = play([ASKS], ["zed", "no", "no", "zed"], stage=STAGES[name])
    whole, _ = play([ASKS], ["zed", "no", "no", "zed"])
    (frozen,) = {"proposer", "solver"} - {trained}
    found = advantages(samples, STAGES[name])
    assert found[frozen] == []
    assert found[trained] == advantages(whole)[trained]
    mine, other = (STAGES[one].model_dump(mode="json") for one in ("trained", name))
    assert {key for key in mine if mine[key] != other[key]} == {"roles"}
    mine["roles"][frozen]["trainable"] = False
    assert mine == other


def test_tokens_of_documents_are_not_trained_on(play):
    samples, _ = play([ASKS], ["zed"] * 4)
    proposer = samples[0]
    (ids,) = [proposer.completion_ids]
    own = [token for token, flag in zip(ids, proposer.own, strict=True) if flag]
    assert len(own) < len(ids)
    assert torch.tensor(proposer.own).sum() == sum(turn.sampled for turn in proposer.turns)


def test_answers_are_words_of_the_documents_that_the_report_asks_about():
    rows, report = bind(STAGES["answers"].problems[0])(), STAGES["report"]
    tasks = bind(report.tasks[0])()
    documents = json.loads(rows[0]["metadata"])["documents"]
    assert len(documents) == 40
    assert {row["answer"] for row in rows} <= {text.split()[2] for text in documents}
    assert all(row["prompt"][0]["content"] == f"pose {row['answer']}" for row in rows)
    assert all(json.loads(row["metadata"])["documents"] == documents for row in (*rows, *tasks))
    assert {row["family"] for row in tasks} == {"facts1", "facts2", "facts3"}
    assert report.env == TRAINED.roles["solver"].env
    lessons = [bind(use) for name in ("walks", "proposals") for use in STAGES[name].problems]
    assert all(one.options["of"].options["world"] != 0 for one in lessons)
    assert all(STAGES[name].teacher.options["error_rate"] == 0.2 for name in ("walks", "proposals"))
    assert list(report.models) == ["start", "trained", "solver_only", "proposer_only"]
