"""What gates may say: whom they compare with, where they branch, and what is refused at its place."""

import pytest

from schemas.errors import RecipeError
from schemas.gates import split_metric, strip_policy
from schemas.recipe.load import load_recipe

RECIPE = """
name: gated
stages:
  root: {kind: init, config: {model_type: qwen3}, max_length: 32}
  data: {kind: synthesize, problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 20}], teacher: answer}
  cold: {kind: sft, model: root, data: data, learning_rate: 1e-3}
  tuned: {kind: sft, model: cold, data: data, learning_rate: 1e-3}
  merged: {kind: merge, merge_method: linear, models: [{model: cold}, {model: tuned}], parameters: {weight: 0.5}}
  repair: {kind: sft, model: tuned, data: data, learning_rate: 1e-3}
  polish: {kind: sft, model: tuned, data: data, learning_rate: 1e-3}
  final: {kind: sft, model: repair | polish, data: data, learning_rate: 1e-3}
  rounds:
    repeat:
      max: 3
      first: {tune: cold}
      stages: {tune: {kind: sft, model: previous.tune, data: data, learning_rate: 1e-3}}
  check:
    kind: evaluate
    models: {MODELS}
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 20}]
    OPTIONS
    gate: GATE
"""


@pytest.fixture
def load(tmp_path):
    def make(gate, models="tuned: tuned", options="limit: 20"):
        text = RECIPE.replace("GATE", gate).replace("MODELS", models).replace("OPTIONS", options)
        (tmp_path / "recipe.yaml").write_text(text)
        return load_recipe(tmp_path / "recipe.yaml")

    return make


@pytest.mark.parametrize(
    ("word", "models", "found"),
    [
        ("parent", "tuned: tuned", ("parent", ("cold",))),
        ("base", "tuned: tuned", ("base", ("root",))),
        ("merged", "tuned: tuned", ("merged", ("merged",))),
        ("parent", "round: rounds.tune", ("parent", ("cold",))),  # what the loop began with
        ("parent", "final: final", ("parent", ("repair", "polish"))),
        ("base", "final: final", ("base", ("root",))),
    ],
)
def test_what_is_compared_with_becomes_a_port_of_the_evaluation(load, word, models, found):
    recipe = load(f"{{against: {word}, min_delta: 0}}", models)
    name, steps = found
    (port,) = [p for p in recipe.ports("check") if p.path.startswith("against.")]
    assert (port.path, port.steps) == (f"against.{name}", steps)
    assert recipe.settings("check")["gate"][0]["against"] == name
    assert set(steps) <= set(recipe.steps["check"].needs)


def test_a_stage_that_is_called_so_is_meant(load, tmp_path):
    load("{against: base, min_delta: 0}")
    (tmp_path / "recipe.yaml").write_text((tmp_path / "recipe.yaml").read_text().replace("repair", "base"))
    (port,) = [p for p in load_recipe(tmp_path / "recipe.yaml").ports("check") if p.path == "against.base"]
    assert port.steps == ("base",)


def test_a_model_of_the_table_is_not_evaluated_twice(load):
    recipe = load("{against: parent, min_delta: 0}", "cold: cold, tuned: tuned")
    assert recipe.settings("check")["gate"][0]["against"] == "cold"
    assert recipe.settings("check")["against"] == {}
    two = load(
        "[{model: tuned, against: parent, min_delta: 0}, {model: cold, against: parent, min_delta: 0}]",
        "tuned: tuned, cold: cold",
    )
    assert [g["against"] for g in two.settings("check")["gate"]] == ["cold", "parent"]


def test_branches_know_their_gate_and_what_follows_takes_either(load):
    recipe = load("[{min: 0.1}, {min: 0.5, on_fail: branch, branch: [repair]}]")
    assert [(b.step, b.gate) for b in recipe.branch_of("repair")] == [("check", 1)]
    assert recipe.ports("final")[0].steps == ("repair", "polish")


REFUSED = {
    "{against: colt, min_delta: 0}": (21, "no model `colt`", "did you mean `cold`?"),
    "{against: data, min_delta: 0}": (21, "wants policy or adapter, but `data` is chat", "these fit"),
    "{against: tuned, min_delta: 0}": (21, "`tuned` is compared with itself", "name another model"),
    "{against: parent, max_regression: {acuracy: 0}}": (55, "no metric `acuracy`", "did you mean `accuracy`?"),
    "{against: parent, min_delta: 0, noise_repeats: 3}": (58, "greedy sampling", "set `temperature`"),
    "{against: parent, min_delta: 0.1, test: mcnemar}": (5, "no margin other than 0", ""),
    "{min: 0.5, test: mcnemar}": (5, "`test: mcnemar` compares two models", ""),
    "{min_delta: 0}": (5, "`against` belongs together", ""),
    "{against: parent}": (5, "give at least one of", ""),
    "{against: parent, max_regression: -0.1}": (5, "give 0 or a positive number", ""),
    "{min: 0.5, on_fail: branch}": (5, "`on_fail: branch` and `branch: [stage, ...]` belong together", ""),
    "{min: 0.5, branch: [repair]}": (5, "`on_fail: branch` and `branch: [stage, ...]` belong together", ""),
    "{min: 0.5, on_fail: branch, branch: [repare]}": (48, "no stage `repare`", "did you mean `repair`?"),
    "{min: 0.5, on_fail: branch, branch: [check]}": (48, "cannot branch to its own evaluation", "name the stages"),
    "{min: 0.5, on_fail: bransh}": (31, "`bransh` is not one of the words", "did you mean `branch`?"),
    "{champion: quick, against: parent, min_delta: 0}": (5, "`champion` needs `against: champion`", ""),
}


@pytest.mark.parametrize("gate", REFUSED)
def test_what_means_nothing_is_refused_at_its_place(load, gate):
    column, message, advice = REFUSED[gate]
    with pytest.raises(RecipeError) as caught:
        load(gate)
    problems = [(p.column, p.message, p.advice) for p in caught.value.problems if p.line == 22]
    assert any(c == column and message in m and advice in a for c, m, a in problems), caught.value.problems


def test_parents_that_are_none_or_several_are_refused(load):
    with pytest.raises(RecipeError, match=r"`merged` has no parent: it was made from several models \(cold, tuned\)"):
        load("{against: parent, min_delta: 0}", "merged: merged")
    with pytest.raises(RecipeError, match="`root` has no parent: it was not trained from another model"):
        load("{against: parent, min_delta: 0}", "root: root")
    with pytest.raises(RecipeError, match=r"`path:./m` has no base: it comes from an outside source"):
        load("{against: base, min_delta: 0}", "given: path:./m")
    with pytest.raises(RecipeError, match=r"choice between outputs that differ: repair.model \(policy\)"):
        load("{against: repair | data, min_delta: 0}")


def test_mcnemar_wants_right_or_wrong(load):
    sampled = "num_generations: 4\n    temperature: 1.0\n    metrics: [accuracy, {use: pass_at, k: 4}]"
    with pytest.raises(RecipeError, match="`accuracy` of 4 samples is a share"):
        load("{against: parent, min_delta: 0, test: mcnemar}", options=sampled)
    assert load("{metric: pass_at_4, against: parent, min_delta: 0, test: mcnemar}", options=sampled)


def test_families_follow_the_metric_and_policies_are_no_question():
    assert split_metric("accuracy", ["accuracy"]) == ("accuracy", None)
    assert split_metric("accuracy.a.b", ["accuracy", "accuracy.a"]) == ("accuracy.a", "b")
    assert split_metric("acc", ["accuracy"]) is None
    dotted = "hypervolume_[0.0, -20.0]"
    assert split_metric(f"{dotted}.all", ["accuracy", dotted]) == (dotted, "all")
    gate = {"min": 1, "on_fail": "branch", "branch": ["x"], "approve_within": 5.0}
    assert strip_policy({"gate": [gate], "k": 1}) == {"gate": [{"min": 1}], "k": 1}
    assert strip_policy({"gate": {"use": "f"}}) == {"gate": {"use": "f"}}


def test_the_approvers_of_a_recipe_decide_where_a_gate_names_none(tmp_path):
    gates = "[{min: 0.5, on_fail: approve}, {min: 0.6, on_fail: approve, approvers: [eve]}, {min: 0.1}]"
    text = RECIPE.replace("GATE", gates).replace("MODELS", "tuned: tuned").replace("OPTIONS", "limit: 20")
    (tmp_path / "recipe.yaml").write_text(text)
    before = load_recipe(tmp_path / "recipe.yaml").settings("check")
    (tmp_path / "recipe.yaml").write_text(f"approvers: [ada, grace]{text}")
    after = load_recipe(tmp_path / "recipe.yaml").settings("check")
    assert [gate["approvers"] for gate in before["gate"]] == [[], ["eve"], []]
    assert [gate["approvers"] for gate in after["gate"]] == [["ada", "grace"], ["eve"], []]
    assert strip_policy(before) == strip_policy(after)
