"""What a killed step goes on from is what that very step wrote, or it is not used, and that is said."""

import hashlib
import hmac
import json
import shutil

import pytest
import torch

from learning.data.row_journal import RowJournal
from learning.models.checkpoint import VERSION, load_latest, save_checkpoint
from learning.sampling.trajectories import Trajectories
from learning.training.loop import TrainingLoop
from lineage.artifacts.store import Store
from schemas.errors import StepError
from schemas.sealed import NotSealed, read_sealed, sealing_with, write_sealed
from tests.security.store_lab import Lab, flipped

KEY = b"k" * 32
RECIPE = """
name: damage
seed: 3
stages:
  base:
    kind: init
    config: {model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
             num_key_value_heads: 2, head_dim: 8}
    max_length: 32
  lessons:
    kind: synthesize
    problems: [{use: reasoning_gym, family: spell_backward, split: train, size: 24, style: short}]
    teacher: answer
  tuned: &tuned
    kind: sft
    model: base
    data: lessons
    max_steps: 8
    save_steps: 2
    per_device_train_batch_size: 4
    max_length: 32
  twin: {<<: *tuned, learning_rate: 0.1}
"""


def save(folder, step):
    save_checkpoint(folder, step, {"a": torch.full((4,), float(step))}, {"at": step})


@pytest.fixture
def two(tmp_path):
    """Two sealed checkpoints."""
    with sealing_with(KEY):
        save(tmp_path / "c", 1)
        save(tmp_path / "c", 2)
    return tmp_path / "c"


def edit_state(folder, seal_again=None):
    """The step that it says raised by five; `seal_again` is the key of who makes another seal."""
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {"step": state["step"] + 5}))
    if seal_again is not None:
        reseal(folder, seal_again)


def reseal(folder, key):
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.name != "seal.json"}
    with sealing_with(key):
        write_sealed(folder / "seal.json", f"checkpoint {VERSION} {folder.parent.name}/{folder.name}", digests)


def swap_weights(folder):
    other = folder.with_name("step-00000001") / "tensors.safetensors"
    (folder / "tensors.safetensors").write_bytes(other.read_bytes())


FORGERIES = {
    "step + 5": edit_state,
    "step + 5, digests made again": lambda folder: edit_state(folder, b""),
    "step + 5, sealed by another step": lambda folder: edit_state(folder, b"o" * 32),
    "weights of an earlier one": swap_weights,
    "a flipped bit of the weights": lambda f: write(f / "tensors.safetensors"),
    "a flipped bit of the state": lambda f: write(f / "state.json"),
    "a flipped bit of the seal": lambda f: write(f / "seal.json"),
    "no seal": lambda f: (f / "seal.json").unlink(),
    "an empty seal": lambda f: (f / "seal.json").write_bytes(b""),
    "one more file": lambda f: (f / "more.safetensors").write_bytes((f / "tensors.safetensors").read_bytes()),
    "a link": lambda f: ((f / "state.json").rename(f.parent / "s"), (f / "state.json").symlink_to(f.parent / "s")),
    "a folder of its own": lambda f: (f / "sub").mkdir(),
}


def write(path):
    path.write_bytes(flipped(path.read_bytes()))


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_checkpoint_gives_way_to_the_one_before_and_is_named(two, forgery, capsys):
    FORGERIES[forgery](two / "step-00000002")
    with sealing_with(KEY):
        step, tensors, state = load_latest(two)
    assert (step, state, tensors["a"].tolist()) == (1, {"at": 1}, [1.0] * 4)
    output = capsys.readouterr().out
    assert output.startswith("checkpoint step-00000002: ")
    assert "it is not used" in output
    # It is out of the way: later ones are kept as if it had never been.
    with sealing_with(KEY):
        save(two, 2)
        save(two, 3)
        assert load_latest(two)[0] == 3
    assert sorted(p.name for p in two.glob("step-*")) == ["step-00000002", "step-00000003"]


def test_a_checkpoint_in_the_place_of_another_is_not_used(two):
    (two / "step-00000001").rename(two / "step-00000009")
    with sealing_with(KEY):
        assert load_latest(two)[0] == 2
    good = two / "good"
    shutil.copytree(two / "step-00000002", good / "step-00000002")
    with sealing_with(KEY):
        assert load_latest(good) is None


def test_where_none_is_left_the_step_begins_at_its_start_and_says_so(two, capsys):
    for folder in two.iterdir():
        edit_state(folder)
    with sealing_with(KEY):
        assert load_latest(two) is None
    assert "none of 2 checkpoint(s) can be used: the step starts from the beginning" in capsys.readouterr().out


def test_seals_of_one_label_fit_no_other_and_no_length_can_be_shifted(tmp_path):
    with sealing_with(KEY):
        write_sealed(tmp_path / "a", "round 1", {"x": 1})
        assert read_sealed(tmp_path / "a", "round 1") == {"x": 1}
        for label in ("round 2", "round", "round 1 "):
            with pytest.raises(NotSealed, match="changed after it was written"):
                read_sealed(tmp_path / "a", label)
    with pytest.raises(NotSealed):
        read_sealed(tmp_path / "a", "round 1")


ROWS = {"a": [1, "é"], "b": {"c": None}, "c": "x" * 50, "d": 4}


@pytest.fixture
def journal(tmp_path):
    file = tmp_path / "sampled.jsonl"
    with sealing_with(KEY), RowJournal(file) as rows:
        rows.add(ROWS)
    return file


def forged_line(key=b""):
    body = json.dumps(["e", "forged"]).encode()
    seal = hmac.new(key, body, hashlib.sha256).hexdigest()
    return body[:-1] + f', "{seal}"]\n'.encode()


EDITS = {
    "value": (lambda lines: [lines[0], lines[1].replace(b"null", b"true"), *lines[2:]], 1),
    "name": (lambda lines: [lines[0].replace(b'"a"', b'"z"'), *lines[1:]], 0),
    "swapped": (lambda lines: [lines[1], lines[0], *lines[2:]], 0),
    "taken out": (lambda lines: [lines[0], *lines[2:]], 1),
    "twice": (lambda lines: [lines[0], lines[0], *lines[1:]], 1),
    "added": (lambda lines: [*lines, forged_line()], 4),
    "seal": (lambda lines: [lines[0][:-5] + b"0" + lines[0][-4:], *lines[1:]], 0),
    "no seal": (lambda lines: [*lines[:3], b'["d", 4]\n'], 3),
    "garbage": (lambda lines: [*lines[:2], b"\xff\xfe\n", *lines[2:]], 2),
}


@pytest.mark.parametrize("edit", EDITS)
def test_rows_of_a_journal_from_the_first_changed_line_on_are_made_again(journal, edit, capsys):
    change, left = EDITS[edit]
    journal.write_bytes(b"".join(change(journal.read_bytes().splitlines(keepends=True))))
    with sealing_with(KEY), RowJournal(journal) as rows:
        assert {name: rows[name] for name in ROWS if name in rows} == dict(list(ROWS.items())[:left])
        assert len(rows) == left
        assert f"sampled.jsonl: line {left + 1} is not as it was written" in capsys.readouterr().out
        rows.add({name: value for name, value in ROWS.items() if name not in rows})
    with sealing_with(KEY), RowJournal(journal) as rows:
        assert {name: rows[name] for name in ROWS} == ROWS


def test_rows_of_another_step_are_not_believed(journal):
    with sealing_with(b"o" * 32), RowJournal(journal) as rows:
        assert len(rows) == 0


def test_a_journal_that_is_changed_while_it_is_used_fails_the_step(journal):
    with sealing_with(KEY), RowJournal(journal) as rows:
        journal.write_bytes(journal.read_bytes().replace(b"null", b"true"))
        with pytest.raises(StepError, match=r"sampled\.jsonl: was written to while the step used it"):
            rows["b"]


def test_rows_written_by_rl_are_compared_before_they_are_used(tmp_path):
    rows = Trajectories(tmp_path / "trajectories", 1.0, 0)
    parts = [(step, rows.write_part(step)) for step in (2, 4)]
    assert rows.damaged(parts) is None
    path = tmp_path / "trajectories/rows-00000004.parquet"
    write(path)
    assert rows.damaged(parts) == "rows-00000004.parquet of the trajectories is not as it was written"
    assert rows.damaged(parts[:1]) is None
    with pytest.raises(StepError, match=r"rows-00000004\.parquet of the trajectories is not as it was written"):
        rows.publish(tmp_path / "out", parts)
    path.unlink()
    assert rows.damaged(parts) is not None


class Killed(BaseException):
    """What ends a training after a checkpoint."""


@pytest.fixture
def training(tmp_path, monkeypatch):
    """Two equal checkouts: in `whole` the recipe ran to its end, in `broken` both trainings died after step 4."""
    save = TrainingLoop.save
    labs = {}
    for name in ("whole", "broken"):
        lab = labs[name] = Lab(tmp_path / name)
        lab.write(RECIPE, "")

    def dying(loop, step):
        save(loop, step)
        if step == 4:
            raise Killed

    assert set(labs["whole"].states().values()) == {"done"}
    monkeypatch.setattr(TrainingLoop, "save", dying)
    assert labs["broken"].states()["tuned"] == "failed"
    monkeypatch.setattr(TrainingLoop, "save", save)
    return labs


def checkpoints(lab, name="tuned"):
    return lab.layout.work(lab.step(name).key) / "checkpoints"


def digests(lab):
    return {m.step: {n: o.digest for n, o in m.outputs.items()} for m in Store(lab.layout).manifests()}


@pytest.mark.parametrize("forgery", ["nothing", "step + 5, digests made again", "of the twin", "all of them"])
def test_a_training_resumed_from_forged_checkpoints_comes_to_the_same_model(training, forgery):
    lab = training["broken"]
    place = checkpoints(lab)
    latest = place / "step-00000004"
    assert latest.is_dir()
    if forgery == "of the twin":
        shutil.rmtree(latest)
        shutil.copytree(checkpoints(lab, "twin") / latest.name, latest)
    elif forgery == "all of them":
        for folder in place.glob("step-*"):
            edit_state(folder, b"")
    elif forgery != "nothing":
        FORGERIES[forgery](latest)
    assert set(lab.states().values()) <= {"done", "cached"}
    assert digests(lab) == digests(training["whole"])
    output = (lab.folder("tuned") / "step.log").read_text()
    assert ("it is not used" in output) == (forgery != "nothing")
    assert ("starts from the beginning" in output) == (forgery == "all of them")
