"""`posttrain import` as a user meets it."""

import json

import pytest
from typer.testing import CliRunner

from flows.cli import app
from schemas.errors import PlanError
from schemas.recipe.load import load_recipe

CONFIG = """
base_model: org/name
datasets: [{path: chats.jsonl, type: chat_template}]
micro_batch_size: 2
mirco_batch_size: 4
learning_rate: 1e-4
wandb_project: mine
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chats.jsonl").write_text('{"messages": []}\n')
    (tmp_path / "axolotl.yaml").write_text(CONFIG)
    return tmp_path


def test_it_prints_a_table_and_writes_a_recipe(config):
    done = CliRunner().invoke(app, ["import", "axolotl.yaml", "--out", "mine.yaml"])
    assert done.exit_code == 0, done.output
    assert "did you mean `micro_batch_size`?" in done.output
    assert "axolotl: 7 keys: 5 mapped, 1 harmless, 1 unknown" in done.output
    recipe = load_recipe(config / "mine.yaml")
    assert recipe.name == "mine"
    assert recipe.stages["sft"].learning_rate == 1e-4
    assert "learning_rate: 0.0001  # learning_rate" in (config / "mine.yaml").read_text()


def test_json_has_every_key_and_no_file_is_replaced(config):
    done = CliRunner().invoke(app, ["import", "axolotl.yaml", "--json", "--from", "axolotl"])
    report = json.loads(done.stdout)
    assert (report["tool"], report["problems"]) == ("axolotl", [])
    assert {key["key"]: key["status"] for key in report["keys"] if key["given"]}["wandb_project"] == "harmless"
    again = CliRunner().invoke(app, ["import", "axolotl.yaml"])
    assert isinstance(again.exception, PlanError)
    assert CliRunner().invoke(app, ["import", "axolotl.yaml", "--force"]).exit_code == 0


def test_a_recipe_that_does_not_validate_is_reported(config):
    (config / "axolotl.yaml").write_text(CONFIG + "adam_beta2: 1.5\n")
    done = CliRunner().invoke(app, ["import", "axolotl.yaml"])
    assert done.exit_code == 3
    assert "adam_beta2" in done.output
