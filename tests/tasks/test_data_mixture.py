import json
from collections import Counter

import numpy as np
import pytest

from learning.data.rows import read_rows
from learning.data.sources.mixture import choose_rows, count_chosen, draw_rows
from learning.data.sources.shares import choose_index_type
from learning.models.policy import load_policy
from schemas.stages.data import Data
from schemas.stages.sft import Sft
from tasks.context import Context
from tasks.data import run
from tasks.sft import run as run_sft
from tests.tasks.data_stages import line
from tests.tasks.test_sft_sources import mean_loss


def stage_of(*sources, **more):
    listed = [{"from": f"path:{i}", **source} for i, source in enumerate(sources)]
    return Data.model_validate({"kind": "data", "sources": listed, **more})


def mix(folder, stage, sizes, seed=0):
    """The rows and the result of a mixture of sources with so many rows each."""
    inputs = {}
    for i, size in enumerate(sizes):
        file = folder / f"in{i}" / f"{'abc'[i]}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(line(f"{i}+{j}?", str(i + j)) for j in range(size)))
        inputs[f"sources.{i}.from"] = file.parent
    work = folder / "work"
    work.mkdir(parents=True)
    result = run(stage, Context(inputs, work, folder / "checkpoints", seed=seed))
    return read_rows(work / "outputs/data", "chat"), result


COUNTS = [
    (stage_of({}, {}), (10, 30), [10, 30]),
    (stage_of({"repeat": 3}, {"max_rows": 5}), (10, 30), [30, 5]),
    (stage_of({"weight": 0.7}, {"weight": 0.3}), (700, 900), [700, 300]),
    (stage_of({"weight": 7}, {"weight": 3}), (7000, 30), [70, 30]),
    (stage_of({"weight": 1}, {"weight": 2}, max_rows=100), (10, 10), [33, 67]),
    (stage_of({"weight": 1}, {"weight": 1}, {"weight": 1}, max_rows=10), (9, 9, 9), [4, 3, 3]),
    (stage_of({}, {}, temperature=1), (10, 30), [10, 30]),
    (stage_of({}, {}, temperature=2), (100, 400), [100, 200]),
    (stage_of({}, {}, max_rows=8), (10, 30), [2, 6]),
]


@pytest.mark.parametrize(("stage", "kept", "expected"), COUNTS)
def test_counts_follow_weights_temperature_and_limits(stage, kept, expected):
    assert count_chosen(stage, kept) == expected


def test_rows_are_drawn_evenly_and_with_the_seed():
    source = stage_of({}).sources[0]
    times = choose_rows(source, 10, 23, (0, 1))
    assert times.sum() == 23
    assert set(times.tolist()) == {2, 3}
    assert (choose_rows(source, 10, 23, (0, 1)) == times).all()
    draws = np.array([choose_rows(source, 10, 3, (seed, 0)) for seed in range(2000)]).mean(0)
    assert np.abs(draws - 0.3).max() < 4 * np.sqrt(0.3 * 0.7 / 2000)


def test_rows_have_the_order_of_a_permutation_in_numbers_of_four_bytes():
    drawn = draw_rows(stage_of({"max_rows": 700}).sources[0], 1000, 1500, (3, 1))
    order = np.random.default_rng([3, 1]).permutation(1000)[:700]
    assert drawn.tolist() == [*order, *order, *order[:100]]
    assert drawn.dtype == np.uint32
    assert [choose_index_type(count) for count in (2**32, 2**32 + 1)] == [np.uint32, np.int64]


def test_a_mixture_has_ids_of_its_own_names_and_a_record(tmp_path):
    stage = stage_of({"weight": 2, "name": "math"}, {"weight": 1})
    rows, result = mix(tmp_path, stage, (3, 9))
    assert Counter(row["source"] for row in rows) == {"math": 3, "b": 1}
    rows, result = mix(tmp_path / "two", stage_of({"weight": 2}, {"weight": 1}, max_rows=9), (4, 2))
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == 9
    assert Counter(row["source"] for row in rows) == {"a": 6, "b": 3}
    assert sum(name.endswith("#2") for name in ids) == 3
    assert ids[0].startswith("a/a.jsonl:1")
    assert (result.metrics["rows"], result.metrics["kept"], result.metrics["mixed"]) == (6, 6, 9)
    recorded = [(s["name"], s["weight"], s["mixed"], round(s["share"], 3)) for s in result.details["sources"]]
    assert recorded == [("a", 2, 6, 0.667), ("b", 1, 3, 0.333)]


def test_equal_ids_in_two_sources_are_two_rows(tmp_path):
    inputs = {}
    for i in range(2):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "rows.jsonl").write_text(line("a", "b", id="same"))
        inputs[f"sources.{i}.from"] = tmp_path / str(i)
    (tmp_path / "work").mkdir()
    run(stage_of({}, {}), Context(inputs, tmp_path / "work", tmp_path / "c", seed=0))
    rows = read_rows(tmp_path / "work/outputs/data", "chat")
    assert [row["id"] for row in rows] == ["source1/same", "source2/same"]


REFUSED = [
    ([{"weight": 1}, {}], {}, "give every source a `weight`, or none"),
    ([{"weight": 1}, {"weight": 1}], {"temperature": 2}, "the sources have weights"),
    ([{"name": "a"}, {"name": "a"}], {}, "two are called `a`"),
]


@pytest.mark.parametrize(("sources", "more", "message"), REFUSED)
def test_contradictory_shares_are_refused(sources, more, message):
    with pytest.raises(ValueError, match=message):
        stage_of(*sources, **more)


def test_each_source_has_a_curve_whose_weighted_mean_is_the_loss(tmp_path, tiny_policy_folder):
    rows, _ = mix(tmp_path, stage_of({}, {}), (3, 5))
    inputs = {"model": tiny_policy_folder, "data": tmp_path / "work/outputs/data"}
    settings = {
        "kind": "sft",
        "model": "m",
        "data": "d",
        "max_steps": 1,
        "logging_steps": 1,
        "validation_fraction": 0.3,
    }
    (tmp_path / "sft").mkdir()
    run_sft(Sft.model_validate(settings), Context(inputs, tmp_path / "sft", tmp_path / "k", seed=3))
    (point,) = map(json.loads, (tmp_path / "sft/metrics.jsonl").read_text().splitlines())
    policy = load_policy(tiny_policy_folder)

    def encode(row):
        given = policy.tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        whole = policy.tokenizer.apply_chat_template(row["prompt"] + row["completion"], return_dict=False)
        return whole, [False] * len(given) + [True] * (len(whole) - len(given))

    from learning.data.examples import encode_row
    from learning.data.held_out import split_rows

    examples = [encode_row(policy.tokenizer, row) for row in rows]
    prompts = [example.prompt_hash for example in examples]
    train, _ = split_rows(list(range(8)), prompts, 0.3)
    for name in ("a", "b"):
        own = [encode(rows[i]) for i in train if rows[i]["source"] == name]
        assert point[f"loss/{name}"] == pytest.approx(mean_loss(policy.model, own), abs=1e-6)
    assert point["loss"] == pytest.approx(mean_loss(policy.model, [encode(rows[i]) for i in train]), abs=1e-6)
    held_out = {rows[i]["source"] for i in set(range(8)) - set(train)}
    assert {key for key in point if key.startswith("eval_loss/")} == {f"eval_loss/{name}" for name in held_out}
