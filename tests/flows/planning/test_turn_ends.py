"""Published, saved and exported files of one model fit together, whichever of its stop ids they list."""

import json

import pytest

from flows.planning.turn_ends import find_model_disagreement
from flows.publishing.model_export import export_hf
from learning.models.policy import load_policy, save_policy
from lineage.artifacts.contract import find_disagreement, read_contract
from lineage.layout import Layout
from tests.learning.models.test_gguf import make_policy

TURNS = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<end>' }}{% endfor %}"


@pytest.fixture
def published(tmp_path):
    """A model whose template ends turns with a token that its generation_config.json does not list, as Gemma's did."""
    policy = make_policy("llama")
    policy.tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    policy.tokenizer.chat_template = TURNS
    save_policy(policy, tmp_path / "published")
    list_stop_ids(tmp_path / "published", 1)
    return tmp_path / "published"


def list_stop_ids(folder, ids):
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": ids}))


def test_saved_and_exported_files_list_all_stop_ids_and_fit_to_the_published_ones(published, tmp_path):
    policy = load_policy(published)
    end = policy.tokenizer.convert_tokens_to_ids("<end>")
    assert policy.stop_ids == (end, 1)
    save_policy(policy, tmp_path / "saved")
    layout = Layout(tmp_path / "lab")
    export_hf(layout, str(published), tmp_path / "exported", "5GB")
    export_hf(layout, str(tmp_path / "saved"), tmp_path / "again", "5GB")
    before = read_contract(published)
    assert before.stop_ids == (1,)
    for name in ("saved", "exported", "again"):
        folder = tmp_path / name
        assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [end, 1]
        assert load_policy(folder).stop_ids == (end, 1)
        assert find_model_disagreement(before, read_contract(folder), folder, {}) is None
        assert find_model_disagreement(read_contract(folder), before, published, {}) is None
    assert find_disagreement(read_contract(tmp_path / "saved"), read_contract(tmp_path / "exported")) is None


def test_an_id_that_the_template_does_not_write_is_a_difference(published, tmp_path):
    save_policy(load_policy(published), tmp_path / "saved")
    list_stop_ids(published, [1, 7])
    one, other = read_contract(published), read_contract(tmp_path / "saved")
    assert "eos_token_id of generation_config.json differ" in find_model_disagreement(one, other, published, {})
    list_stop_ids(published, [1])
    without = {"chat_template": "{% for m in messages %}{{ m['content'] + eos_token }}{% endfor %}"}
    assert find_model_disagreement(read_contract(published), other, published, {}) is None
    problem = find_model_disagreement(read_contract(published), other, published, without)
    assert problem.startswith("eos_token_id of generation_config.json differ ([1] and [1, ")
