"""A3T: the reason of an explored action is written after it and stands before it; failures push, successes pull.

Search, reasons, reward, advantage and loss are those of the recipe; the model's turns and log-probabilities are
dictated. Not shown: that an agent becomes better, which is measured.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.batch.batch_layout import forest
from learning.data.rows import write_rows
from learning.evaluation.sampled_answers import AnswerSample
from learning.lookup import bind
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import score
from learning.teachers import text_games
from learning.text_game.rows import make_row
from learning.text_game.world import Goal, Holder, State, World
from schemas.recipe.load import load_recipe
from tasks.synthesize import accept_samples

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "a3t.yaml")
STAGES = LOADED.stages
EXPLORED, TUNED, SOLVED, IMITATED = (
    STAGES[name] for name in ("rounds-1-explored", "rounds-1-tuned", "imitated-1-solved", "imitated-1-tuned")
)
WORLD = World({"hall": {}}, {}, {"table": Holder("hall")}, {}, ("cup",), Goal("cup", "table"))
GAME = make_row(WORLD, State("hall", ("hall",)), 2)
LOOK, TAKE, PUT = (f"Thought: so\nAction: {action}" for action in ("look", "take cup", "put cup in table"))


def read(step, port):
    """The step that a port of another one reads."""
    (found,) = [one for one in LOADED.ports(step) if one.path == port]
    return found.steps[0]


def explore(say, earlier=None, **options):
    """The rows that the stage keeps of the game, where the model's turns are `say` of the conversation so far."""
    use = EXPLORED.search.model_copy(update=options if earlier else {"earlier": None, **options})
    search = bind(use, "search", {"search.earlier": earlier})
    rows = search([GAME], lambda rows: [[say(row["prompt"])] for row in rows], lambda rows, texts: [])
    return accept_samples(EXPLORED, rows)


def fail(prompt):
    return AnswerSample(LOOK, "stop")


def split(rows):
    """Rows of the model's own episode, and those of exploring ones, by what their metadata say."""
    notes = [json.loads(row["metadata"]) for row in rows]
    own, explored = (
        [row for row, note in zip(rows, notes, strict=True) if note["explored"] is n] for n in (False, True)
    )
    return own, explored


@pytest.fixture
def calls(monkeypatch):
    """What was drawn and what was asked for, in this order."""
    calls = []
    draw, explain = text_games.text_game_wanderer, text_games.text_game_reasons

    def draws(row, rng):
        calls.append(("action", row["prompt"], draw(row, rng)))
        return calls[-1][2]

    def explains(row, rng, *, question="why: "):
        calls.append(("reason", row["prompt"], explain(row, rng, question=question)))
        return calls[-1][2]

    monkeypatch.setattr(text_games, "text_game_wanderer", draws)
    monkeypatch.setattr(text_games, "text_game_reasons", explains)
    return calls


def test_a_reason_is_asked_for_an_action_that_was_drawn_before_and_stands_before_it(calls):
    _, explored = split(explore(fail))
    kinds = [kind for kind, *_ in calls]
    assert kinds == ["action", "reason"] * (len(calls) // 2)
    written = set()
    for (_, before, action), (_, asked, reason) in zip(calls[::2], calls[1::2], strict=True):
        # The reason's prompt is the episode so far in bare actions, and names the action that was drawn.
        assert asked == [*before, {"role": "user", "content": f"why: {action}"}]
        assert {m["content"] for m in before if m["role"] == "assistant"} <= {"look", "take cup", "drop cup"}
        written.add(f"Thought: {reason}\nAction: {action}")
    assert "Thought: the goal is about the cup\nAction: take cup" in written
    texts = {row["text"] for row in explored}
    assert len(texts) >= 3
    assert texts <= written | {LOOK}
    # What is stored has the reason before the action, in the turns that the next ones see, too.
    for row in explored:
        thought, act = row["text"].split("\n")
        assert (thought[:9], act[:8]) == ("Thought: ", "Action: ")
        said = [message["content"] for message in row["prompt"] if message["role"] == "assistant"]
        assert set(said) <= written | {LOOK}


def test_failed_games_are_explored_and_successes_kept(calls):
    own, explored = split(explore(fail))
    assert [row["text"] for row in own] == [LOOK] * 8
    assert {json.loads(row["metadata"])["outcome"] for row in own} == {"failed"}
    assert {json.loads(row["metadata"])["outcome"] for row in explored} == {"solved"}
    assert {row["text"].split("Action: ")[1] for row in explored} >= {"take cup", "put cup in table"}
    assert EXPLORED.search.options["tries"] == 4
    # About half of the turns are drawn.
    asked = []
    explore(lambda prompt: asked.append(prompt) or fail(prompt), tries=40)
    share = len(asked) - 8
    assert len(calls) // 2 / (len(calls) // 2 + share) == pytest.approx(0.5, abs=0.12)


def test_a_game_that_the_model_solves_is_not_explored(calls):
    own, explored = split(explore(lambda prompt: AnswerSample(TAKE if len(prompt) == 1 else PUT, "stop")))
    assert [row["text"] for row in own] == [TAKE, PUT]
    assert {json.loads(row["metadata"])["outcome"] for row in own} == {"solved"}
    assert (explored, calls) == ([], [])
    # A turn that the length limit cut ends its episode: here before anything was done.
    assert explore(lambda prompt: AnswerSample(TAKE, "length"), explore=1e-9) == []


@pytest.fixture
def recorded(answering, tmp_path):
    """A success and a failure of one turn each, as the stage `tuned` reads them."""
    rows = [
        GAME
        | {
            "id": name,
            "metadata": json.dumps({"outcome": name}),
            "completion": [{"role": "assistant", "content": text}],
        }
        for name, text in (("solved", "ab"), ("failed", "abc"))
    ]
    write_rows(tmp_path, "chat", rows)
    asked = bind(STAGES["rounds-1-asked"].problems[0], "problems.0", {"problems.0.data": tmp_path})()
    rollout = bind(TUNED.rollout, "rollout", {"rollout.data": tmp_path})
    requests = [SampleRequest(row, TUNED.num_generations) for row in asked]
    samples = rollout.ask(
        0, {"requests": requests, "sampler": answering(lambda prompt, n: ""), "rng": np.random.default_rng(0)}
    )
    score([bind(use) for use in TUNED.rewards], [use.weight for use in TUNED.rewards], samples, {"step": 0})
    return asked, samples


def compute_loss(asked, samples, totals):
    """Loss and its gradient by the log-probability of each completion, which is spread over its tokens."""
    batch = forest(samples)
    algorithm = bind_algorithm(TUNED, {port.path: Path("p") for port in LOADED.ports("rounds-1-tuned")})
    advantage_T = with_advantages(algorithm, batch, 0, states={}, rows=asked).sampled("advantage")
    total_P = torch.tensor(totals, dtype=torch.float64, requires_grad=True)
    lp_T = (total_P / batch.path_T.bincount())[batch.path_T]
    loss_T = bind(TUNED.policy_loss).ask(0, {"lp_T": lp_T, "advantage_T": advantage_T})
    weight_T = bind(TUNED.loss_aggregation).ask(0, {"max_completion_length": 64}, with_dropped(batch, False))
    loss = (weight_T * loss_T).sum()
    return loss.item(), torch.autograd.grad(loss, total_P)[0].tolist()


def test_a_success_pulls_and_a_failure_pushes(recorded):
    asked, samples = recorded
    assert [row["id"] for row in asked] == ["solved", "failed"]
    assert [sample.reward for sample in samples] == [1.0, -1.0]
    assert len(samples[0].completion_ids) != len(samples[1].completion_ids)
    loss, grad = compute_loss(asked, samples, [-2.0, -3.0])
    # −(1·(−2) + (−1)·(−3)) / 2, whatever the number of tokens.
    assert loss == pytest.approx(-0.5)
    assert grad == pytest.approx([-0.5, 0.5])
    assert TUNED.loss_terms == []


def test_imitation_sees_the_success_alone(recorded):
    asked, samples = recorded
    (use,) = SOLVED.filters
    kept = [row["id"] for row in asked if bind(use).ask(0, {"row": row})]
    assert kept == ["solved"]
    # Of the success alone the loss is 2, and nothing comes from the failure.
    loss, grad = compute_loss(asked[:1], samples[:1], [-2.0])
    assert (loss, grad) == (pytest.approx(2.0), pytest.approx([-1.0]))
    assert read("imitated-2-tuned", "data") == "imitated-2-solved"
    assert read("imitated-2-solved", "data") == "imitated-2-explored"
    assert (IMITATED.kind, IMITATED.train_on) == ("sft", "last")
    assert (SOLVED.exact_dedup, SOLVED.decontaminate, SOLVED.scores) == (False, None, [])


def test_a_round_trains_on_the_data_of_all_rounds_so_far(tmp_path):
    for loop in ("rounds", "imitated"):
        assert read(f"{loop}-1-explored", "search.earlier") == "seeds"
        for number in (2, 3):
            assert read(f"{loop}-{number}-explored", "search.earlier") == f"{loop}-{number - 1}-explored"
            assert read(f"{loop}-{number}-explored", "model") == f"{loop}-{number - 1}-tuned"
            assert read(f"{loop}-{number}-tuned", "model") == "cold_start"
    for number in (1, 2, 3):
        assert read(f"rounds-{number}-tuned", "rollout.data") == f"rounds-{number}-explored"
        assert read(f"rounds-{number}-tuned", "prompts") == f"rounds-{number}-asked"
        assert read(f"rounds-{number}-asked", "problems.0.data") == f"rounds-{number}-explored"
    assert STAGES["seeds"].notes == {"outcome": "solved"}
    before = list[dict]()
    for number in (1, 2, 3):
        rows = explore(fail, tmp_path / str(number - 1) if before else None, seed=number)
        # Every turn of the rounds before comes first, with what was noted of it; no id is there twice.
        assert [(row["id"], row["prompt"], row["completion"], row["metadata"]) for row in rows[: len(before)]] == [
            (f"<{row['id']}", row["prompt"], row["completion"], row["metadata"]) for row in before
        ]
        assert len(rows) >= len(before) + 8
        assert len({row["id"] for row in rows}) == len(rows)
        (tmp_path / str(number)).mkdir()
        write_rows(tmp_path / str(number), "chat", rows)
        before = rows


def test_the_trainings_cost_the_same_and_are_compared_on_other_games():
    explored = [STAGES[f"{loop}-2-explored"].model_dump() for loop in ("rounds", "imitated")]
    assert explored[0] == explored[1]
    assert TUNED.use_peft
    assert IMITATED.use_peft
    assert (TUNED.max_steps, TUNED.learning_rate) == (IMITATED.max_steps, IMITATED.learning_rate)
    assert TUNED.generation_batch_size == IMITATED.per_device_train_batch_size
    report = STAGES["report"]
    assert [read("report", f"models.{name}") for name in ("start", "imitated", "trained")] == [
        "cold_start",
        "imitated-3-tuned",
        "rounds-3-tuned",
    ]
    assert report.env == type(report.env).model_validate(EXPLORED.search.options["env"])
    games, held_out = (
        bind(use.model_copy(update={"size": 8}))() for use in (STAGES["games"].problems[0], report.tasks[0])
    )
    assert not {row["id"] for row in games} & {row["id"] for row in held_out}
    assert (STAGES["games"].problems[0].options["split"], report.tasks[0].options["split"]) == ("train", "test")
