"""Models are compared along their lineage, whatever their order in the table."""

import pytest

from lineage.reports.descent import relate_models, select_comparisons
from schemas.manifest import InputRecord, Manifest


def trained(name, *starts, port="model"):
    """A step that made a model from others; `port` is that of a single one."""
    ports = [port] if len(starts) == 1 else [f"models.{i}" for i in range(len(starts))]
    return Manifest.model_construct(key=name, inputs=tuple(received(p, s) for p, s in zip(ports, starts, strict=True)))


def received(port, made):
    return InputRecord(port=port, step=made, key=made, output="model", digest="d" * 64, type="policy")


STORE = {
    made.key: made
    for made in (
        trained("base"),
        trained("sft", "base"),
        trained("hidden", "sft"),
        trained("rl_1", "hidden"),
        trained("rl_2", "hidden"),
        trained("merged", "rl_1", "rl_2"),
        trained("judged", "sft", port="reference"),
        trained("stranger"),
    )
}


def evaluation(models, lines=(), gates=()):
    inputs = tuple(received(f"models.{name}", name) for name in models)
    return Manifest.model_construct(inputs=inputs, details={"comparisons": list(lines), "gates": list(gates)})


@pytest.mark.parametrize(
    ("models", "pairs"),
    [
        (["base", "sft"], {("sft", "base"): "parent"}),
        (["sft", "rl_1", "rl_2"], {("rl_1", "sft"): "parent", ("rl_2", "sft"): "parent"}),
        (["base", "rl_1", "rl_2"], {("rl_1", "base"): "parent", ("rl_2", "base"): "parent"}),
        (["rl_1", "base"], {("rl_1", "base"): "parent"}),
        (["sft", "stranger"], {("stranger", "sft"): "first"}),
        (["sft", "judged"], {("judged", "sft"): "first"}),  # a reference is no parent
        (
            ["base", "rl_1", "rl_2", "merged"],
            {
                ("rl_1", "base"): "parent",
                ("rl_2", "base"): "parent",
                ("merged", "rl_1"): "parent",
                ("merged", "rl_2"): "parent",
                ("merged", "base"): "base",
            },
        ),
    ],
)
def test_pairs_follow_the_training(models, pairs):
    assert relate_models(evaluation(models), STORE.get) == pairs


def test_gates_add_their_pairs_and_unknown_artifacts_end_a_history():
    gates = [{"model": "rl_2", "against": "rl_1"}, {"model": "rl_2", "against": None}]
    pairs = relate_models(evaluation(["sft", "rl_1", "rl_2"], gates=gates), STORE.get)
    assert pairs["rl_2", "rl_1"] == "gate"
    assert relate_models(evaluation(["base", "rl_1"]), lambda key: None) == {("rl_1", "base"): "first"}


def test_a_parent_that_the_table_names_later_is_compared_from_its_childs_side():
    line = {
        "model": "base",
        "against": "rl_1",
        "family": "all",
        "value": -0.2,
        "low": -0.3,
        "high": 0.1,
        "p_value": 0.2,
    }
    (chosen,) = select_comparisons(evaluation(["rl_1", "base"], [line]), STORE.get)
    assert chosen == {
        "model": "rl_1",
        "against": "base",
        "family": "all",
        "value": 0.2,
        "low": -0.1,
        "high": 0.3,
        "p_value": 0.2,
        "relation": "parent",
    }


def test_differences_of_unrelated_neighbours_are_not_shown():
    def line(model, against):
        return {"model": model, "against": against, "family": "all", "value": 0.1, "low": 0.0, "high": 0.2}

    lines = [line("rl_1", "sft"), line("rl_2", "sft"), line("rl_2", "rl_1")]
    chosen = select_comparisons(evaluation(["sft", "rl_1", "rl_2"], lines), STORE.get)
    assert [(each["model"], each["against"]) for each in chosen] == [("rl_1", "sft"), ("rl_2", "sft")]
