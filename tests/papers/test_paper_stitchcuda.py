"""StitchCUDA: of three agents the coder alone is trained, on two single skills, with a rubric beside execution.

Programs are written by hand; rewards, verifier, turn order and items are those of the recipe. Not shown: that a trained
team writes faster programs, which is measured.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from learning.collection.turn_orders import plan_and_repair
from learning.lookup import bind
from learning.samples.conversation import NextTurn, RoleTurn
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.use import RewardUse
from tests.papers.loops import Loop, Update, by_chance

STAGES = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "stitchcuda.yaml").stages
CODER, EXECUTED, REPORT = STAGES["coder"], STAGES["executed"], STAGES["report"]
CHAIN = ["mul", "add", "relu", "sum"]
ROW = {
    "id": "k",
    "prompt": [{"role": "user", "content": " ".join(CHAIN)}],
    "answer": None,
    "family": "task",
    "metadata": json.dumps({"chain": CHAIN, "seed": 5}),
}
TILED, FUSED, HALF, PLAIN = (
    "tile mul add relu sum",
    "mul add relu sum",
    "mul add / relu / sum",
    "mul / add / relu / sum",
)
WRONG = "tile mul sub relu sum"


def score(stage, *texts):
    """Return the sum of a stage's rewards for programs."""
    uses = [bind(use) for use in stage.rewards]
    given = {"rows": [ROW] * len(texts), "completions": list(texts)}
    return [sum(parts) for parts in zip(*(use.ask(0, given) for use in uses), strict=True)]


def measure(*texts):
    """Return what the report counts."""
    return bind(RewardUse.model_validate(REPORT.rewards[0].options["of"])).ask(
        0, {"rows": [ROW] * len(texts), "completions": list(texts)}
    )


def test_right_and_fast_programs_come_before_right_and_slow_ones_before_wrong_ones():
    """Execution: 0.5 + 0.5·(8 − passes)/(8 − 2); rubric: mean of the shares of fused operations and tiled kernels."""
    assert score(EXECUTED, TILED, FUSED, HALF, PLAIN, WRONG) == pytest.approx([1, 5 / 6, 4 / 6, 0.5, 0])
    assert score(CODER, TILED, FUSED, HALF, PLAIN, WRONG) == pytest.approx([2, 8 / 6, 5 / 6, 0.5, 0])
    assert score(CODER, "tile mul add / tile relu sum") == pytest.approx([0.5 + 0.5 * 4 / 6 + (2 / 3 + 1) / 2])


@pytest.mark.parametrize(("copied", "executed"), [("stored", 1.0), ("reference", 0.5), ("mul / stored", 11 / 12)])
def test_a_copy_passes_execution_and_ends_below_an_honest_slow_program(copied, executed):
    assert score(EXECUTED, copied) == pytest.approx([executed])
    assert score(EXECUTED, copied)[0] >= score(EXECUTED, PLAIN)[0]
    assert score(CODER, copied)[0] == pytest.approx(executed - 1)
    assert score(CODER, copied)[0] < score(CODER, PLAIN)[0]


def test_the_report_counts_programs_on_inputs_that_nobody_stored():
    assert measure("stored", "reference", PLAIN, TILED, WRONG) == [0.0, 0.5, 0.5, 1.0, 0.0]
    assert REPORT.rewards[0].options["role"] == "coder"


@pytest.mark.parametrize(
    "text", ["", "/", "tile", "mul //", "mul add relu sum;", "__import__('os')", "mul " * 500, "sum / tile"]
)
def test_what_is_no_program_earns_nothing(text):
    assert score(CODER, text) == [0.0]


def test_items_are_single_turns_of_both_skills():
    rows = bind(STAGES["skills"].problems[0])()
    assert [row["family"] for row in rows[:4]] == ["generate", "optimise"] * 2
    assert sum(row["family"] == "generate" for row in rows) == len(rows) / 2
    for row in rows[:20]:
        chain = json.loads(row["metadata"])["chain"]
        (message,) = row["prompt"]
        said = message["content"].removeprefix(" ".join(chain)).strip()
        if row["family"] == "generate":
            assert said == ("fuse tile" if "sum" in chain else "fuse")
        else:
            program, _, verdict = said.removeprefix("had ").partition(": ")
            assert verify(program, row) == said
            assert verdict == "wrong" or verdict.endswith(" passes")


def verify(program, row):
    script = bind(REPORT.roles["verifier"].script)
    return script.ask(0, {"turns": [RoleTurn("coder", program)], "row": row})


def test_the_verifier_says_how_many_passes_a_program_needs():
    told = [verify(text, ROW) for text in (TILED, FUSED, PLAIN, "stored", "reference", WRONG, "x")]
    ends = ["2 passes", "4 passes", "8 passes", "1 passes", "8 passes", "wrong", "wrong"]
    assert [text.rpartition(": ")[2] for text in told] == ends
    assert told[0] == f"had {TILED}: 2 passes"


def test_training_moves_the_coder_alone_on_samples_of_one_turn(tiny_policy):
    """The planner is the model that the coder began as; a batch has both skills and no episode of the team."""
    rows = bind(STAGES["skills"].problems[0])()[:2]
    longer = RewardUse.model_validate({"use": "formats.brevity", "soft": 1, "hard": 200})
    loop = Loop(CODER, tiny_policy, rows, num_groups=2, n=4, plan=by_chance, tokens=8, rewards=[longer])
    samples = loop.iterate()
    assert {sample.row["family"] for sample in samples} == {"generate", "optimise"}
    assert all(not sample.turns for sample in samples)
    before = digest(tiny_policy.model)
    update = Update(CODER, tiny_policy)
    update.at_once(samples)
    assert digest(tiny_policy.model) == before
    assert digest(update.trained.model) != before
    assert (CODER.roles, CODER.policies, CODER.env, CODER.turn_order) == ({}, {}, None, None)
    assert CODER.model == REPORT.policies["planner"].model == "start"
    assert REPORT.models["coder"] == "coder"


def digest(model):
    parts = (value.detach().numpy().tobytes() for _, value in sorted(model.state_dict().items()))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def order(*texts, **options):
    """Return who speaks next after turns of the roles of the report, by its turn order."""
    roles = list(REPORT.roles)
    names = [roles[0], *(roles[1:] * 9)]
    turns = [RoleTurn(name, text) for name, text in zip(names, texts, strict=False)]
    return bind(REPORT.turn_order.model_copy()).ask(0, {"roles": roles, "turns": turns, "row": ROW, **options})


def test_a_team_plans_once_and_repairs_until_nothing_is_faster():
    assert order() == NextTurn("planner")
    assert order("fuse tile") == NextTurn("coder", "fuse tile", begins="context")
    assert order("fuse tile", PLAIN) == NextTurn("verifier", PLAIN)
    slow = verify(PLAIN, ROW)
    assert order("fuse tile", PLAIN, slow) == NextTurn("coder", slow, begins="context")
    assert order("fuse tile", TILED, verify(TILED, ROW)) == NextTurn()
    assert order("fuse tile", PLAIN, slow, TILED) == NextTurn("verifier", TILED)
    assert order("fuse tile", PLAIN, slow, PLAIN, slow) == NextTurn()
    with pytest.raises(StepError, match="give three roles, not 2"):
        plan_and_repair(["a", "b"], [], until="x")


def test_what_the_coder_sees_in_the_team_is_what_it_was_trained_on():
    row = next(row for row in bind(STAGES["skills"].problems[0])() if row["family"] == "generate")
    chain = " ".join(json.loads(row["metadata"])["chain"])
    plan = bind(STAGES["lessons"].teacher)(row | {"family": "plan", "answer": "fuse"}, np.random.default_rng(0))
    shown = REPORT.roles["coder"].prompt.replace("{question}", chain).replace("{message}", plan)
    assert shown == f"{chain} fuse"
    assert row["prompt"][0]["content"] in (shown, f"{shown} tile")
    assert REPORT.roles["planner"].policy == "planner"
    assert REPORT.roles["coder"].policy == "model"


def test_the_trainings_differ_in_the_rubric_alone():
    coder, executed = (stage.model_dump() for stage in (CODER, EXECUTED))
    assert [use["use"] for use in coder.pop("rewards")] == ["kernels.executed", "composite.gated"]
    assert [use["use"] for use in executed.pop("rewards")] == ["kernels.executed"]
    assert coder == executed
    held_out = bind(REPORT.tasks[0])()
    seen = [row for name in ("skills", "lessons") for use in STAGES[name].problems for row in bind(use)()]
    chains = [{tuple(json.loads(row["metadata"])["chain"]) for row in rows} for rows in (held_out, seen)]
    assert not chains[0] & chains[1]
