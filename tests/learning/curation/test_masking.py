import json
from collections import Counter

import pytest

from learning.curation.masking import Masked, mask_row, mask_rows, mask_text
from learning.curation.private_data import PATTERNS, without_private_data
from learning.data.rows import read_rows, write_rows
from schemas.stages.curate import Mask
from tests.learning.curation.test_private_data import CLEAN, FOUND

KEY = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n" + "MIIB" * 16 + "\n-----END RSA PRIVATE KEY-----"
ALL = list(PATTERNS)


def masked(text, kinds=ALL, placeholder="[{kind}]"):
    counts = Counter()
    return mask_text(text, kinds, placeholder, counts), dict(counts)


@pytest.mark.parametrize("kind", PATTERNS)
def test_spans_of_each_kind_are_replaced_and_what_only_looks_alike_stays(kind):
    for text in FOUND[kind]:
        made, counts = masked(f"before {text} after")
        assert counts[kind] == 1
        assert f"[{kind.upper()}]" in made
        assert made.startswith("before ")
        assert made.endswith("after")
        assert without_private_data({"prompt": [{"content": made}]}, kinds=[kind])
    for text in CLEAN[kind]:
        assert masked(text, [kind]) == (text, {})


def test_a_private_key_goes_as_a_whole_and_of_a_password_only_its_value():
    assert masked(f"see\n{KEY}\nend") == ("see\n[KEY]\nend", {"key": 1})
    cut = KEY.partition("\n\n")[0].partition("\nProc")[0] + "\n" + "MIIB" * 16 + "\nMII"
    assert masked(f"{cut} end") == ("[KEY]\nMII end", {"key": 1})
    assert masked('password = "hunter22", x') == ('password = "[PASSWORD]", x', {"password": 1})


def test_overlapping_spans_are_one_placeholder_and_nothing_of_them_stays():
    text = 'api_key: "sk-' + "a" * 24 + '"'
    assert masked(text) == ('api_key: "[TOKEN]"', {"token": 1})
    assert masked("a@b.io, c@d.io", placeholder="<{kind}>") == ("<EMAIL>, <EMAIL>", {"email": 2})


def test_all_texts_of_a_row_are_masked_and_names_are_not():
    call = {"type": "function", "function": {"name": "mail", "arguments": json.dumps({"to": "a@b.io"})}}
    row = {
        "id": "x@y.io:1",
        "prompt": [{"role": "user", "content": "write to a@b.io", "reasoning_content": "c@d.io"}],
        "completion": [{"role": "assistant", "content": None, "tool_calls": [call]}],
        "answer": "e@f.io",
        "family": "mail@home.io",
        "metadata": json.dumps({"from": ["g@h.io"], "n": 1}),
        "margin": 0.5,
    }
    counts = Masked()
    made = mask_row(row, ALL, "[{kind}]", counts)
    assert (counts.rows, dict(counts.spans)) == (1, {"email": 5})
    assert (made["id"], made["family"], made["margin"]) == ("x@y.io:1", "mail@home.io", 0.5)
    assert made["prompt"] == [{"role": "user", "content": "write to [EMAIL]", "reasoning_content": "[EMAIL]"}]
    arguments = made["completion"][0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"to": "[EMAIL]"}
    assert json.loads(made["metadata"]) == {"from": ["[EMAIL]"], "n": 1}
    assert made["answer"] == "[EMAIL]"


def test_rows_without_private_data_keep_their_bytes(tmp_path):
    metadata = '{"a":  1, "b": "é"}'
    rows = [
        {"id": str(i), "prompt": [{"role": "user", "content": t}], "answer": None, "family": "", "metadata": metadata}
        for i, t in enumerate(["nothing", "mail a@b.io", "8.8.8.8 and 8.8.8.8"])
    ]
    for name in ("given", "made"):
        (tmp_path / name).mkdir()
    write_rows(tmp_path / "given", "prompts", rows)
    counts = mask_rows(tmp_path / "given", Mask(kinds=["email", "ip_address"]), tmp_path / "made")
    assert counts.metrics == {"masked": 2, "masked.email": 1, "masked.ip_address": 2}
    made = read_rows(tmp_path / "made", "prompts")
    assert [row["prompt"][0]["content"] for row in made] == ["nothing", "mail [EMAIL]", "[IP_ADDRESS] and [IP_ADDRESS]"]
    assert {row["metadata"] for row in made} == {metadata}
