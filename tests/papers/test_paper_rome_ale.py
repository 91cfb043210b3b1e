"""ROME: ratios, clips and returns belong to whole interactions, and no session shares eight words with a problem.

Episodes are laid out by hand; advantages, ratio and loss are those of the recipe. Not shown: that this is more stable,
which is measured.
"""

import json
import math
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.curation.decontamination import Evaluation, drop_contaminated
from learning.curation.ledger import open_curation
from learning.data.rows import SCHEMAS, write_rows
from learning.lookup import bind
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "rome-ale.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
TRAINED, OUTCOME, TOKENS = (STAGES[name] for name in ("trained", "outcome", "tokens"))
GAMMA = 0.9


def episode(reward, sizes, group=0):
    """An episode whose turns have so many tokens, with one observed token between turns."""
    turns = [Turn(size, int(i + 1 < len(sizes))) for i, size in enumerate(sizes)]
    total = sum(turn.sampled + turn.observed for turn in turns)
    made = Sample({"id": str(group)}, group, "policy", [9], [5] * total, [-1.0] * total, "stop", "", turns=turns)
    made.versions, made.scores, made.reward = [0] * total, {"environment.earned": reward}, reward
    return made


def advantages(stage, samples, gamma=None):
    """The advantages of every sampled token of each episode, and its turns."""
    if gamma is not None:
        center, discount = stage.advantage
        discount = discount.model_copy(update={"gamma": gamma})
        stage = stage.model_copy(update={"advantage": [center, discount]})
    batch = with_advantages(bind_algorithm(stage, {}), forest(samples), 0)
    values = batch.sampled("advantage")
    return [values[batch.path_T == path].tolist() for path in range(len(samples))]


def test_three_chunks_have_the_returns_of_the_paper():
    """γ = 0.5, and a reward of 1 beside one of −1, whose mean is 0: 0.25, 0.5 and 1, whatever a chunk's tokens are."""
    for sizes in ((1, 1, 1), (4, 2, 1), (1, 2, 8)):
        first, second = advantages(TRAINED, [episode(1.0, sizes), episode(-1.0, (1,))], gamma=0.5)
        assert first == pytest.approx([v for v, n in zip((0.25, 0.5, 1.0), sizes, strict=True) for _ in range(n)])
        assert second == [-1.0]


def test_the_mean_of_the_group_is_subtracted_before_the_discount():
    """Rewards 1 and 0.4: what exceeds 0.7 is discounted by 0.9 per turn; without discount it is ±0.3 everywhere."""
    samples = [episode(1.0, (2, 1)), episode(0.4, (1, 1, 1))]
    first, second = advantages(TRAINED, samples)
    assert first == pytest.approx([0.3 * GAMMA, 0.3 * GAMMA, 0.3])
    assert second == pytest.approx([-0.3 * GAMMA**2, -0.3 * GAMMA, -0.3])
    first, second = advantages(OUTCOME, samples)
    assert (first, second) == (pytest.approx([0.3] * 3), pytest.approx([-0.3] * 3))


def losses(stage, log_ratio_T, advantage, path_T, turn_T):
    """The losses of tokens and their gradients with respect to the log-probabilities."""
    algorithm = bind_algorithm(stage, {})
    lp_T = torch.tensor(log_ratio_T, dtype=torch.float64, requires_grad=True)
    columns = {"lp_T": lp_T, "lp_behav_T": torch.zeros_like(lp_T), "path_T": path_T, "turn_T": turn_T}
    log_ratio = algorithm.ratio.ask(0, columns)
    advantage_T = torch.full_like(lp_T, advantage)
    loss_T = algorithm.policy_loss.ask(0, {"log_ratio_T": log_ratio, "advantage_T": advantage_T.detach()})
    (grad,) = torch.autograd.grad(loss_T.sum(), lp_T)
    return log_ratio.exp().tolist(), loss_T.tolist(), grad.tolist()


PATH = torch.tensor([0, 0, 0, 1])
TURN = torch.tensor([0, 0, 1, 0])


def test_one_ratio_for_both_tokens_of_a_chunk():
    """Log-ratios 0.2 and 0.4: e^0.3 for both. The other turn and the other episode keep their own."""
    ratios, _, _ = losses(TRAINED, [0.2, 0.4, -0.1, 0.01], 1.0, PATH, TURN)
    assert ratios == pytest.approx([math.exp(x) for x in (0.3, 0.3, -0.1, 0.01)])
    ratios, _, _ = losses(TOKENS, [0.2, 0.4, -0.1, 0.01], 1.0, PATH, TURN)
    assert ratios == pytest.approx([math.exp(x) for x in (0.2, 0.4, -0.1, 0.01)])


def test_the_clip_acts_on_the_chunk():
    """ln 1.5 and −ln 1.5 make a chunk of ratio 1: it keeps its gradient, though each token alone would be clipped."""
    wide = math.log(1.5)
    _, loss, grad = losses(TRAINED, [wide, -wide, 0.2, 0.0], 1.0, PATH, TURN)
    # The chunk's ratio stands at both tokens, so that each has half of two tokens' gradient.
    assert grad == pytest.approx([-1.0, -1.0, 0.0, -1.0])
    assert loss == pytest.approx([-1.0, -1.0, -1.04, -1.0])
    _, _, grad = losses(TOKENS, [wide, -wide, 0.2, 0.0], 1.0, PATH, TURN)
    assert grad == pytest.approx([0.0, -1 / 1.5, -math.exp(0.2), -1.0])
    # Below the range a negative advantage has no gradient, a positive one has.
    _, _, grad = losses(TRAINED, [-0.1, -0.1, 0.0, 0.0], -1.0, PATH, TURN)
    assert grad == pytest.approx([0.0, 0.0, 1.0, 1.0])


def session(name, request):
    prompt = [{"role": "user", "content": request}]
    completion = [{"role": "assistant", "content": "submit"}]
    return {"id": name, "prompt": prompt, "completion": completion, "answer": None, "family": "shell", "metadata": "{}"}


def test_a_session_that_shares_eight_words_with_the_benchmark_is_dropped(tmp_path):
    words = ["copy", "the", "notes", "to", "old", "and", "then", "move", "list", "into", "docs"]
    problem = session("p", " ".join(words)) | {"completion": None}
    asks = {"eight": ["now", *words[2:10], "twice"], "seven": ["now", *words[2:9], "twice"], "none": ["delete", "log"]}
    write_rows(tmp_path, "chat", [session(name, " ".join(text)) for name, text in asks.items()])
    settings = STAGES["clean"].decontaminate
    with open_curation(tmp_path, spill=tmp_path / "spill", num_threads=1, memory_limit="1GiB") as rows:
        drop_contaminated(rows, [Evaluation("report", [problem])], settings.ngram, settings.max_overlap)
        kept = [row["id"] for block in rows.blocks(["id"]) for row in block.to_pylist()]
    assert kept == ["seven", "none"]


def test_a_transcript_is_a_whole_session_with_what_the_terminal_printed():
    begun, whole = session("a-0", "show notes"), session("a-1", "show notes")
    begun["completion"] = [{"role": "assistant", "content": "cat notes.txt"}]
    whole["prompt"] = [*whole["prompt"], *begun["completion"], {"role": "user", "content": "red cup"}]
    with duckdb.connect() as connection:
        rows = pa.Table.from_pylist([begun, whole], schema=SCHEMAS["chat"])
        connection.register("rows", rows)
        texts = connection.execute(STAGES["transcripts"].sources[0].query).fetchall()
    assert texts == [("user: show notes\nassistant: cat notes.txt\nuser: red cup\nassistant: submit",)]


def test_the_order_of_the_stages():
    """Transcripts before the agent's own turns before reinforcement; sessions are clean in both."""
    assert STAGES["transcripts"].sources[0].from_ == "clean"
    assert (STAGES["pretrained"].model, STAGES["pretrained"].data) == ("base", "transcripts")
    assert (STAGES["cold_start"].model, STAGES["cold_start"].data) == ("pretrained", "clean")
    assert (STAGES["direct"].model, STAGES["direct"].data) == ("base", "clean")
    assert {stage.model for stage in (TRAINED, OUTCOME, TOKENS)} == {"cold_start"}
    assert (TRAINED.rollout.use, TRAINED.rollout.options["max_staleness"]) == ("streamed", 2)
    assert (TRAINED.num_mini_batches, TRAINED.loss_terms) == (2, [])


def test_the_trainings_differ_in_one_choice():
    trained, changed = TRAINED.model_dump(), {}
    for name in ("outcome", "tokens"):
        other = STAGES[name].model_dump()
        changed[name] = {key for key in trained if trained[key] != other[key]}
    assert changed == {"outcome": {"advantage"}, "tokens": {"ratio", "policy_loss"}}


def test_requests_of_training_and_report_are_disjoint_and_of_the_same_kind():
    asked, reported = bind(STAGES["requests"].problems[0])(), bind(STAGES["report"].tasks[0])()
    assert not {row["id"] for row in asked} & {row["id"] for row in reported}
    for row in (*asked, *reported):
        about = json.loads(row["metadata"])
        assert len(about["files"]) == 5
        assert len(about["gold"].split("; ")) == 1
