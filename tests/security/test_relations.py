"""A row's lineage to a model says how: trained on, sampled, offered or only reachable; no more than is recorded."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from learning.data.rows import write_rows
from learning.data.rows_used import FILE, write_rows_used
from learning.training.loop import TrainingLoop
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.tracing.ancestry import render, trace
from tests.lineage.conftest import Maker

ROWS = ["seen", "drawn", "spare"]


@pytest.fixture
def maker(tmp_path):
    """A table of three rows, curated: `gone` was dropped."""
    made = Maker(tmp_path)
    made.make("base", "init", {"model": {"w": b"0"}}, {"model": "policy"})
    made.make("raw", "synthesize", {"data": {"rows.parquet": [{"id": i} for i in [*ROWS, "gone"]]}}, {"data": "chat"})
    dropped = [{"id": "gone", "reason": "length", "detail": ""}]
    made.make(
        "clean",
        "curate",
        {"data": {"rows.parquet": [{"id": i} for i in ROWS]}, "report": {"dropped.parquet": dropped}},
        {"data": "chat", "report": "directory"},
        [("data", "raw", "data")],
    )
    return made


def trained(maker, step, kind, port, used, inputs=(), files=None, data="clean", **more):
    """A model whose stage drew rows: `used` is (id, sampled, trained), None for no record of that."""
    place = Store.publish

    def publish(store, folder, manifest):
        if used is not None:
            write_rows_used(folder, used)
        return place(store, folder, manifest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "publish", publish)
        given = [("model", "base", "model"), (port, data, "data")] if data else [("model", "base", "model")]
        types = {"model": "policy"} | ({"trajectories": "trajectories"} if files else {})
        return maker.make(step, kind, {"model": {"w": step.encode()}} | (files or {}), types, [*given, *inputs], **more)


def how(maker, row):
    """Model to how the row came into it."""
    ancestry = trace(maker.layout, row).as_json()
    return {node["step"]: node["relation"]["how"] for node in ancestry["down"] if "relation" in node}


USED = [("seen", 4, 3), ("drawn", 2, 0)]


@pytest.mark.parametrize(
    ("kind", "port"), [("sft", "data"), ("preference", "data"), ("reward_model", "data"), ("rl", "prompts")]
)
def test_each_row_of_a_stage_is_trained_on_sampled_or_only_offered(maker, kind, port):
    trained(maker, "tuned", kind, port, USED)
    assert [how(maker, row) for row in ROWS] == [{"tuned": w} for w in ("trained on", "sampled", "offered")]
    assert how(maker, "gone") == {}


def test_what_is_shown_says_how_often(maker):
    trained(maker, "tuned", "rl", "prompts", USED)
    (relation,) = (n["relation"] for n in trace(maker.layout, "seen").as_json()["down"] if "relation" in n)
    assert relation == {"how": "trained on", "through": None, "sampled": 4, "trained": 3, "note": ""}
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(render(trace(maker.layout, "seen")))
    console.file.close()
    text = console.export_text()
    assert "went into (1 model: 1 trained on)" in text
    assert "trained on: drawn 4 times, a gradient from 3" in text


def test_a_model_made_of_a_model_has_it_from_there(maker):
    trained(maker, "tuned", "sft", "data", USED)
    trained(maker, "better", "rl", "prompts", [("spare", 1, 1)], [("reference", "tuned", "model")])
    maker.make(
        "both",
        "merge",
        {"model": {"w": b"m"}},
        {"model": "policy"},
        [("models.a", "tuned", "model"), ("models.b", "better", "model")],
    )
    assert how(maker, "seen") == {"tuned": "trained on", "better": "trained on", "both": "trained on"}
    assert how(maker, "spare") == {"tuned": "offered", "better": "trained on", "both": "trained on"}
    relations = {
        n["step"]: n["relation"]["through"] for n in trace(maker.layout, "seen").as_json()["down"] if "relation" in n
    }
    assert relations == {"tuned": None, "better": "tuned", "both": "tuned"}


def test_what_a_model_wrote_is_only_reachable_from_the_rows_it_learned(maker):
    trained(maker, "tuned", "sft", "data", USED)
    maker.make(
        "written",
        "synthesize",
        {"data": {"rows.parquet": [{"id": "new"}]}},
        {"data": "chat"},
        [("model", "tuned", "model")],
    )
    trained(maker, "later", "sft", "data", [("new", 1, 1)], data="written")
    assert how(maker, "seen") == {"tuned": "trained on", "later": "reachable"}
    assert how(maker, "new") == {"later": "trained on"}


def test_a_table_read_for_something_else_is_offered_and_marked(maker):
    trained(maker, "tuned", "rl", "prompts", [("other", 1, 1)], [("eval_prompts", "clean", "data")], data=None)
    (node,) = (n for n in trace(maker.layout, "seen").as_json()["down"] if "relation" in n)
    assert (node["relation"]["how"], node["relation"]["note"]) == ("offered", "read as eval_prompts")


def trajectories(*rows):
    return {"trajectories": {"trajectories.parquet": [{"prompt_id": row, "advantage": value} for row, value in rows]}}


def test_without_a_record_of_rows_the_trajectories_say_it(maker):
    files = trajectories(("seen", 0.5), ("seen", -0.5), ("drawn", None), ("drawn", 0.0))
    trained(maker, "tuned", "rl", "prompts", None, files=files)
    assert [how(maker, row)["tuned"] for row in ROWS] == ["trained on", "sampled", "offered"]


def test_where_only_some_trajectories_were_kept_the_rest_is_marked_unknown(maker):
    settings = {"log_trajectories": 0.5}
    trained(maker, "tuned", "rl", "prompts", None, files=trajectories(("seen", 0.5)), settings=settings)
    (node,) = (n for n in trace(maker.layout, "spare").as_json()["down"] if "relation" in n)
    assert node["relation"]["note"] == "only a part of its trajectories was kept"


def test_an_artifact_from_before_there_was_a_record_says_so(maker):
    trained(maker, "tuned", "sft", "data", None)
    (node,) = (n for n in trace(maker.layout, "seen").as_json()["down"] if "relation" in n)
    assert (node["relation"]["how"], node["relation"]["note"]) == ("offered", "which rows were drawn was not recorded")


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_record_that_was_changed_is_not_believed(maker, content):
    made = trained(maker, "tuned", "sft", "data", USED)
    file = maker.store.folder(made) / FILE
    if content is None:
        pq.write_table(pa.table({"id": ["spare"], "sampled": [1], "trained": [1]}), file)
    else:
        file.write_bytes(content)
    for row in ROWS:
        (node,) = (n for n in trace(maker.layout, row).as_json()["down"] if "relation" in n)
        assert (node["relation"]["how"], node["relation"]["note"]) == (
            "offered",
            "the record of its rows is not the sealed one",
        )


def test_trajectories_that_were_changed_are_not_believed(maker):
    made = trained(maker, "tuned", "rl", "prompts", None, files=trajectories(("seen", 0.5)))
    file = maker.store.folder(made) / "outputs/trajectories/trajectories.parquet"
    file.write_bytes(b"garbage")
    (node,) = (n for n in trace(maker.layout, "seen").as_json()["down"] if "relation" in n)
    assert node["relation"]["note"] == "its trajectories are damaged"


def chat(name):
    messages = [{"role": "assistant", "content": "b"}]
    prompt = [{"role": "user", "content": f"{name}a"}]
    return {"id": name, "prompt": prompt, "answer": "", "family": "f", "metadata": "{}", "completion": messages}


def record(context):
    """What a stage recorded of its rows: id to (sampled, trained)."""
    return {r["id"]: (r["sampled"], r["trained"]) for r in pq.read_table(context.folder / FILE).to_pylist()}


@pytest.fixture
def context(tmp_path, tiny_policy_folder):
    from tasks.context import Context

    def make(port, kind, rows):
        data = tmp_path / "data"
        data.mkdir()
        write_rows(data, kind, rows)
        folder, checkpoints = tmp_path / "made", tmp_path / "checkpoints"
        folder.mkdir()
        checkpoints.mkdir()
        return Context({"model": tiny_policy_folder, port: data}, folder, checkpoints, seed=1)

    return make


@pytest.mark.parametrize(("steps", "packing"), [(2, False), (7, False), (2, True)])
def test_sft_records_exactly_the_rows_of_the_batches_that_it_stepped(context, monkeypatch, steps, packing):
    import tasks.sft as task
    from schemas.stages.sft import Sft

    rows = [*(chat(f"{n}") for n in range(8)), chat("y" * 60)]  # the last is too long
    here, seen = context("data", "chat", rows), []
    split_evenly = task.split_evenly

    def watched(passes, ranks):
        seen.extend(example.row for examples in passes for example in examples)
        return split_evenly(passes, ranks)

    monkeypatch.setattr(task, "split_evenly", watched)
    settings = {"max_steps": steps, "per_device_train_batch_size": 1 if packing else 3, "max_length": 24}
    stage = {"kind": "sft", "model": "m", "data": "d", "learning_rate": 1e-3, "packing": packing, **settings}
    task.run(Sft.model_validate(stage), here)
    assert record(here) == {name: (seen.count(name),) * 2 for name in set(seen)}
    assert "y" * 60 not in seen
    assert (len(set(seen)) < 8) == (steps == 2)


@pytest.mark.parametrize("kind", ["preference", "reward_model"])
def test_stages_that_learn_from_pairs_record_the_pairs_of_their_batches(context, monkeypatch, kind):
    import importlib

    from pydantic import TypeAdapter

    from schemas.stages.union import Stage

    task = importlib.import_module(f"tasks.{kind}")
    worse = [{"role": "assistant", "content": "c"}]
    pairs = [{**chat(f"{n}"), "chosen": chat("")["completion"], "rejected": worse, "margin": 1.0} for n in range(9)]
    here, seen = context("data", "preference_pairs", pairs), []
    train_step = TrainingLoop.train_step

    def watched(loop, step):
        objective = loop.objective
        train = objective.pairs.train.pairs if kind == "preference" else objective.pairs.train
        seen.extend(train[i].id for i in objective.epochs.at(step)[0])
        train_step(loop, step)

    monkeypatch.setattr(TrainingLoop, "train_step", watched)
    stage = {"kind": kind, "model": "m", "data": "d", "learning_rate": 1e-3, "max_steps": 2, "max_length": 24}
    more = {"per_device_train_batch_size": 2, "validation_fraction": 0.2}
    task.run(TypeAdapter(Stage).validate_python({**stage, **more}), here)
    assert record(here) == {name: (seen.count(name),) * 2 for name in set(seen)}
    assert len(set(seen)) == 4


def short(completions):
    """The shorter, the better; one prompt has no differences."""
    return [-len(text) for text in completions]


def same(completions):
    """No completion is better than another: no advantage, no gradient."""
    return [1.0 for _ in completions]


@pytest.mark.parametrize("share", [1.0, 0.0])
@pytest.mark.parametrize("reward", ["short", "same"])
def test_rl_records_what_was_sampled_and_what_had_an_advantage(context, reward, share):
    import tasks.rl as task
    from schemas.stages.rl import Rl

    rows = [{n: v for n, v in chat(f"p{i}").items() if n != "completion"} for i in range(6)]
    here = context("prompts", "prompts", rows)
    stage = {
        "kind": "rl",
        "model": "m",
        "prompts": "p",
        "rewards": [f"{__name__}:{reward}"],
        "generation_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 2,
        "save_steps": 1,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "advantage": ["center"],
        "ratio": "token",
        "policy_loss": "clipped",
        "loss_aggregation": "token_mean",
        "log_trajectories": share,
    }
    task.run(Rl.model_validate(stage), here)
    records = record(here)
    assert records
    assert sum(sampled for sampled, _ in records.values()) == 16
    assert (sum(trained for _, trained in records.values()) > 0) == (reward == "short")
    kept = pq.read_table(here.folder / "outputs/trajectories/trajectories.parquet").to_pylist()
    if share:
        counted = {name: [bool(r["advantage"]) for r in kept if r["prompt_id"] == name] for name in records}
        assert records == {name: (len(each), sum(each)) for name, each in counted.items()}
    else:
        assert kept == []


def test_the_record_changes_no_digest_of_a_model_and_is_under_the_seal(maker):
    one = trained(maker, "tuned", "sft", "data", USED)
    other = Maker(maker.layout.root / "other")
    other.make("base", "init", {"model": {"w": b"0"}}, {"model": "policy"})
    other.make("clean", "curate", {"data": {"rows.parquet": [{"id": i} for i in ROWS]}}, {"data": "chat"})
    two = trained(other, "tuned", "sft", "data", None)
    assert one.outputs["model"] == two.outputs["model"]
    assert FILE in json.loads((maker.store.folder(one) / "seal.json").read_text())
    assert Layout(maker.layout.root).artifact("sft", one.key) == maker.store.folder(one)
