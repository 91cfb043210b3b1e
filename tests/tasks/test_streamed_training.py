"""Training over rows on disk: the weights of training over rows in memory, bit by bit, also after a kill."""

import pytest

from learning.data import rows as tables
from learning.data import stored_rows as stored
from learning.data.rows import write_rows
from schemas.stages.preference import Preference
from schemas.stages.reward_model import RewardModel
from schemas.stages.sft import Sft
from tasks import preference, reward_model, sft


def said(text):
    return [{"role": "assistant", "content": text}]


def row(number, **sides):
    prompt = [{"role": "user", "content": f"{number % 17}+"}]
    return {"id": f"{number}", "prompt": prompt, "answer": "", "family": "f", "metadata": "{}", **sides}


@pytest.fixture
def inputs(request, tiny_policy_folder, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    if "sft" in request.node.name:
        write_rows(folder, "chat", [row(i, completion=said("a" * (i % 60))) for i in range(100)])
    else:
        pairs = [row(i, chosen=said("a" * (i % 60)), rejected=said("b"), margin=1.0) for i in range(100)]
        write_rows(folder, "preference_pairs", pairs)
    return {"model": tiny_policy_folder, "data": folder}


@pytest.fixture
def on_disk(monkeypatch):
    def use():
        monkeypatch.setattr(tables, "IN_MEMORY", 0)
        monkeypatch.setattr(stored, "PART", 16)

    return use


COMMON = {"model": "m", "data": "d", "max_steps": 4, "save_steps": 2, "logging_steps": 1, "max_length": 48}
STAGES = {
    "sft": (sft, Sft(kind="sft", per_device_train_batch_size=4, **COMMON)),
    "sft-packed": (sft, Sft(kind="sft", per_device_train_batch_size=2, packing=True, **COMMON)),
    "preference": (preference, Preference(kind="preference", validation_fraction=0.2, **COMMON)),
    "reward_model": (reward_model, RewardModel(kind="reward_model", validation_fraction=0.2, margin=True, **COMMON)),
}


@pytest.mark.parametrize(("task", "stage"), STAGES.values(), ids=STAGES)
def test_weights_are_the_same(at, training, on_disk, task, stage):
    whole = at("whole")
    result = task.run(stage, whole)
    on_disk()
    with pytest.raises(training.Stopped):
        task.run(stage, at("disk", 0, training.stop_at(3)))
    parts = sorted(whole.folder.parent.glob("disk-checkpoints/encoded/part-*.arrow"))
    assert len(parts) == 7
    made = [path.stat().st_mtime_ns for path in parts]
    last = at("disk", 1)
    assert task.run(stage, last).metrics == result.metrics
    assert training.files(last) == training.files(whole)
    assert [path.stat().st_mtime_ns for path in parts] == made
