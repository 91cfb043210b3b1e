"""The command line of vLLM's server for adapters."""

import json

import pytest

from flows.serving.models import Chosen
from flows.serving.vllm import command
from schemas.errors import PlanError


def words(folder, **config):
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, **config}))
    return command(Chosen("tuned", folder, "", ""), port=1, dtype=None, max_slots=2, max_length=None)


def test_adapters_are_served_over_their_base_with_room_for_their_rank(tmp_path):
    given = words(tmp_path, r=24, use_rslora=True)
    assert given[given.index("--model") + 1] == str(tmp_path / "base")
    assert given[given.index("--max-lora-rank") + 1] == "32"
    assert given[given.index("--lora-modules") + 1] == f"tuned={tmp_path}"


@pytest.mark.parametrize("config", [{"use_dora": True}, {"modules_to_save": ["norm"]}, {"r": 600}], ids=str)
def test_what_vllm_does_not_compute_is_refused(tmp_path, config):
    with pytest.raises(PlanError, match="posttrain export"):
        words(tmp_path, **config)
