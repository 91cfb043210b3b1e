"""Chain of Thought Imitation with Procedure Cloning: the loss covers the trace, and the predicted move depends on it.

Not shown: image games; traces of Monte Carlo tree search.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import learning.toy_tasks.mazes
from learning.data.chat import encode_prompt
from learning.data.examples import encode_rows
from learning.data.rows import write_rows
from learning.lookup import bind
from learning.models.policy import load_policy, set_determinism
from learning.toy_tasks.mazes import mazes, parse_maze, solved_maze
from schemas.recipe.load import load_recipe
from tasks import evaluate, init, sft
from tasks.context import Context

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "procedure-cloning.yaml"


@pytest.fixture(scope="module")
def stages():
    return load_recipe(RECIPE, profile="tiny").stages


def lessons(stage):
    """What the stage writes, as the kind does it."""
    teacher = bind(stage.teacher)
    dialogues = [(row, teacher(row, np.random.default_rng(0))) for row in bind(stage.problems[0])()[:200]]
    return [row | {"completion": [{"role": "assistant", "content": text}]} for row, text in dialogues]


def test_without_its_trace_the_data_set_is_the_baselines(stages):
    traced, plain = lessons(stages["searches"]), lessons(stages["moves"])
    for row in traced:
        text = row["completion"][0]["content"]
        assert re.fullmatch(r"([a-i]+;)+#[UDLR]", text)  # the search, then the move; the state is the prompt
        row["completion"][0]["content"] = text[text.index("#") :]
    assert traced == plain
    # There is no trace to force on the baseline: nothing stands between the maze and its move.
    assert {len(row["completion"][0]["content"]) for row in plain} == {len("#R")}


def measure_distances(free, goal):
    """How many moves each free cell is from the goal, by repeated relaxation."""
    distances = {goal: 0}
    for _ in free:
        for row, column in free:
            near = [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
            known = [distances[cell] + 1 for cell in near if cell in distances]
            if known:
                distances[row, column] = min([*known, distances.get((row, column), len(free))])
    return distances


def test_the_trace_is_breadth_first_from_the_goal_and_ends_at_the_agent(stages):
    for row in lessons(stages["searches"]):
        side, free, start, goal = parse_maze(row)
        clauses = row["completion"][0]["content"].partition("#")[0].split(";")[:-1]
        cells = [[divmod(ord(letter) - ord("a"), side) for letter in clause] for clause in clauses]
        distances, looked_at = measure_distances(free, goal), [clause[0] for clause in cells]
        assert looked_at[0] == goal
        assert [distances[cell] for cell in looked_at] == sorted(distances[cell] for cell in looked_at)
        reached = [cell for clause in cells for cell in clause[1:]]
        assert reached[-1] == start
        assert len(set(reached)) == len(reached)


def test_no_maze_of_training_is_evaluated_with_another_place_of_the_agent(stages):
    def read_walls_and_goals(stage):
        return {parse_maze(row)[1:2] + parse_maze(row)[3:] for row in bind(stage.problems[0])()}

    trained = read_walls_and_goals(stages["searches"])
    assert not trained & read_walls_and_goals(stages["unseen"])


def test_the_loss_is_on_trace_and_move_only(stages, tiny_policy):
    rows = lessons(stages["searches"])[:20]
    for row, example in zip(rows, encode_rows(tiny_policy.tokenizer, rows, 128).kept, strict=True):
        learned = tiny_policy.tokenizer.decode(example.ids[example.num_given :])
        assert learned == row["completion"][0]["content"] + "<eos>"
        assert example.num_learned == len(row["completion"][0]["content"]) + 1


def test_evaluating_calls_no_planner(stages, tiny_policy_folder, tmp_path, monkeypatch):
    write_rows(tmp_path, "prompts", bind(stages["unseen"].problems[0])()[:4])

    def planner(maze):
        raise AssertionError("the expert's search is not at hand")

    monkeypatch.setattr(learning.toy_tasks.mazes, "search_maze", planner)
    report = stages["report"]
    inputs = {"prompts": tmp_path, **{f"models.{name}": tiny_policy_folder for name in report.models}}
    result = evaluate.run(report, Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=0))
    assert result.metrics["problems"] == 4
    with pytest.raises(AssertionError):
        bind(stages["unseen"].problems[0])()


def test_another_trace_changes_the_moves_chances(tiny_policy):
    one, other = mazes(size=2, split="test", side=3)
    assert not torch.equal(*(chances(tiny_policy, one, trace) for trace in (one, other)))


def chances(policy, row, traced):
    """Log-probabilities of the move in a maze after the search of a maze, this one's or another's."""
    trace = solved_maze(traced, None)[:-1]
    ids = [*encode_prompt(policy.tokenizer, row["prompt"]), *policy.tokenizer.encode(trace, add_special_tokens=False)]
    with torch.no_grad():
        return policy.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)


@pytest.mark.slow
def test_a_trained_model_makes_the_move_of_the_search_that_it_is_shown(stages, tmp_path):
    def step(name, task, stage, **inputs):
        context = Context(inputs, tmp_path / name, tmp_path / name / "checkpoints", seed=21)
        context.checkpoints.mkdir(parents=True)
        task.run(stage, context)
        return tmp_path / name / "outputs" / "model"

    base = step("base", init, stages["base"])
    (tmp_path / "data").mkdir()
    teacher, problems = bind(stages["searches"].teacher), bind(stages["searches"].problems[0])()
    replies = [[{"role": "assistant", "content": teacher(row, np.random.default_rng(0))}] for row in problems]
    write_rows(tmp_path / "data", "chat", [row | {"completion": c} for row, c in zip(problems, replies, strict=True)])
    policy = load_policy(step("procedure", sft, stages["procedure"], model=base, data=tmp_path / "data"))
    set_determinism(0, 1)

    rows = bind(stages["unseen"].problems[0])()
    pairs = [
        (a, next((b for b in rows if parse_maze(b)[2] == parse_maze(a)[2] and b["answer"] != a["answer"]), None))
        for a in rows
    ]
    made = {"own": 0, "other's": 0}
    for row, other in [pair for pair in pairs if pair[1]]:
        for whose, traced in (("own", row), ("other's", other)):
            move = policy.tokenizer.decode([int(chances(policy, row, traced).argmax())])
            made[whose] += (move == traced["answer"]) / sum(1 for pair in pairs if pair[1])
    assert made["own"] > 0.85
    assert made["other's"] > 0.5  # in a maze where that move is wrong
