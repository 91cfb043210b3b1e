"""The loss of the first step on a file is that of TRL's trainers, whose figures `first_losses.py` has written."""

import json

import pytest

from schemas.stages.preference import Preference
from schemas.stages.sft import Sft
from tasks import preference, sft
from tasks.context import Context
from tests.tasks.data_stages import convert
from tests.tasks.first_losses import BETA, GOLDEN, write_files

LOSSES = json.loads(GOLDEN.read_text())["losses"]
SHARED = {"model": "m", "data": "d", "max_steps": 1, "logging_steps": 1, "learning_rate": 1e-9}
SHARED |= {"per_device_train_batch_size": 8, "max_length": 512, "validation_fraction": 0}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first_losses")
    write_files(folder)
    return folder


def compute_first_loss(files, folder, run, stage, rows, emit):
    convert(folder, {"rows.jsonl": (files / f"{rows}.jsonl").read_bytes()}, emit)
    inputs = {"model": files / "model", "reference": files / "reference", "data": folder / "work/outputs/data"}
    (folder / "run").mkdir()
    run(stage, Context(inputs, folder / "run", folder / "checkpoints", seed=0))
    return json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[0])["loss"]


@pytest.mark.parametrize(
    ("name", "rows", "train_on"),
    [("sft on all assistant turns", "messages", "all"), ("sft on completions", "completions", "last")],
)
def test_the_first_loss_of_sft_is_that_of_trl(files, tmp_path, name, rows, train_on):
    stage = Sft.model_validate({"kind": "sft", "train_on": train_on, **SHARED})
    loss = compute_first_loss(files, tmp_path, sft.run, stage, rows, "chat")
    assert loss == pytest.approx(LOSSES[name], abs=1e-5)


def test_the_first_loss_of_dpo_is_that_of_trl(files, tmp_path):
    losses = [{"use": "dpo", "beta": BETA}]
    stage = Preference.model_validate({"kind": "preference", "reference": "r", "loss": losses, **SHARED})
    loss = compute_first_loss(files, tmp_path, preference.run, stage, "pairs", "preference_pairs")
    assert loss == pytest.approx(LOSSES["dpo"], abs=1e-5)
    assert abs(LOSSES["dpo"] - 0.6931) > 0.05  # the reference is another model, so that it counts
