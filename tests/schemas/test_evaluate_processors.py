"""Logits processors of an evaluation: what is refused."""

import pytest
from pydantic import ValidationError

from schemas.stages.evaluate import Evaluate

USE = {"use": "action_values", "values": "v"}
SETTINGS = {"kind": "evaluate", "models": {"a": "m", "b": "m"}, "prompts": "p", "logits_processors": {"b": [USE]}}


def test_they_are_for_single_models_and_leave_other_keys_as_they_are():
    assert Evaluate.model_validate(SETTINGS).logits_processors["b"][0].use == "action_values"
    plain = {key: value for key, value in SETTINGS.items() if key != "logits_processors"}
    assert "logits_processors" not in Evaluate.model_validate(plain).model_dump()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"logits_processors": {"c": [USE]}}, "no model is called `c`"),
        ({"engine": "vllm"}, "need `engine: torch`, not vllm"),
        ({"metrics": ["answer_logprob"]}, "which `logits_processors` change"),
        ({"tasks": [{"use": "lm_eval", "tasks": ["x"]}], "prompts": None}, "does not apply to `lm_eval`"),
    ],
)
def test_what_they_cannot_change_is_refused(more, text):
    with pytest.raises(ValidationError, match=text):
        Evaluate.model_validate({**SETTINGS, **more})
