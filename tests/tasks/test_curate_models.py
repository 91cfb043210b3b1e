"""Curation by models: masks, scores, embeddings, and the table of what each step leaves."""

import json
from functools import wraps

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from learning.curation.model_embeddings import hidden_states
from learning.curation.row_scores import perplexity
from learning.data.chat import encode_text
from learning.data.rows import read_rows, write_rows
from learning.models.policy import load_policy
from schemas.errors import StepError
from schemas.stages.curate import Curate
from tasks.context import Context
from tasks.curate import run

WORDS = ["sun", "moon", "sea", "sky", "tree", "rock", "bird", "fish", "wind", "rain"]


def make_rows(count):
    random = np.random.default_rng(5)
    return [
        {
            "id": f"r{i}",
            "prompt": [{"role": "user", "content": " ".join(random.choice(WORDS, 3)) + f" {i}?"}],
            "completion": [{"role": "assistant", "content": " ".join(random.choice(WORDS, 4))}],
            "answer": None,
            "family": "f",
            "metadata": "{}",
        }
        for i in range(count)
    ]


@pytest.fixture
def curate(tmp_path, tiny_policy_folder):
    def curated(rows, name="step", checkpoints="checkpoints", on_progress=lambda event: None, **settings):
        data, folder = tmp_path / "data", tmp_path / name
        data.mkdir(exist_ok=True)
        folder.mkdir()
        write_rows(data, "chat", rows)
        inputs = {"data": data}
        for port in ("scores.0.model", "scores.1.of.judge", "semantic_dedup.embedding.model"):
            inputs[port] = tiny_policy_folder
        context = Context(inputs, folder, tmp_path / checkpoints, seed=0, on_progress=on_progress)
        stage = Curate(kind="curate", data="d", decontaminate=None, **settings)
        result = run(stage, context)
        kept = [row["id"] for row in read_rows(folder / "outputs/data", "chat")]
        return result, kept, folder / "outputs"

    return curated


def check_sums(result):
    """Rows in, dropped and out of every step add up, and so do the reasons."""
    steps, left = result.details["steps"], result.details["rows"]
    for line in steps:
        assert line["rows_in"] == left
        left -= line["dropped"]
        assert line["rows_out"] == left
        assert line["changed"] or not line["reasons"] or sum(line["reasons"].values()) == line["dropped"]
    assert left == result.details["kept"] == result.metrics["kept"]
    assert sum(line["dropped"] for line in steps) == sum(result.details["dropped"].values())


PERPLEXITY = {"use": "perplexity", "model": "m", "max_quantile": 0.5}
WORDS_OF_JUDGE = {"a": 1.0, "b": 0.0}
JUDGE = {
    "use": "reward",
    "of": {
        "use": "judges.model",
        "judge": "m",
        "template": "{completion}",
        "low": 0,
        "high": 1,
        "words": WORDS_OF_JUDGE,
    },
    "min_quantile": 0.25,
}


def test_every_step_of_a_whole_curation_adds_up(curate):
    rows = make_rows(60)
    rows[3]["completion"][0]["content"] = "write to a@b.io or c@d.io"
    rows[4] |= {"prompt": rows[5]["prompt"], "completion": rows[5]["completion"]}
    rows[6]["completion"][0]["content"] = " "
    rows[7]["completion"][0]["content"] = "la " * 12
    result, kept, outputs = curate(
        rows,
        mask={},
        filters=[{"use": "repetition", "max_share": 0.4}, "printable"],
        semantic_dedup={"threshold": 0.8},
        scores=[PERPLEXITY, JUDGE],
        diversity={"rows": 12},
        limit=10,
    )
    check_sums(result)
    assert len(kept) == 10
    assert kept == sorted(kept, key=lambda name: int(name[1:]))
    lines = {line["step"]: line for line in result.details["steps"]}
    assert list(lines) == [
        "mask",
        "schema",
        "length",
        "exact_dedup",
        "repetition {'max_share': 0.4}",
        "printable {}",
        "semantic_dedup",
        "score perplexity",
        "score reward(judges.model)",
        "diversity",
        "limit",
    ]
    assert (lines["mask"]["changed"], lines["mask"]["reasons"]) == (1, {"email": 2})
    assert result.metrics["masked.email"] == 2
    assert lines["schema"]["reasons"] == {"empty completion": 1}
    assert lines["exact_dedup"]["dropped"] == 1
    assert lines["repetition {'max_share': 0.4}"]["dropped"] == 1
    assert lines["score perplexity"]["reasons"] == {"too high": lines["score perplexity"]["rows_in"] // 2}
    assert lines["diversity"]["rows_out"] == 12
    assert result.notices[0].startswith("rows left by each step: 60 rows → schema 59 → exact_dedup 58 → repetition")
    assert result.notices[0].endswith("diversity 12 → limit 10, mask changed 1 rows")
    report = (outputs / "report/report.md").read_text()
    assert "| score perplexity | " in report
    assert "Score perplexity: " in report
    assert json.loads((outputs / "report/report.json").read_text())["steps"] == result.details["steps"]


def test_rows_within_the_limits_stay_and_every_score_is_written(curate, tiny_policy_folder):
    rows = make_rows(30)
    rows[2]["completion"][0]["content"] = "long " * 60
    values = perplexity(rows, model=tiny_policy_folder)
    known = np.array([v for v in values if v is not None])
    low, high = float(np.quantile(known, 0.2)), float(np.sort(known)[-4])
    result, kept, outputs = curate(
        rows, scores=[{**PERPLEXITY, "max_quantile": None, "max": high, "min_quantile": 0.2}]
    )
    assert kept == [row["id"] for row, v in zip(rows, values, strict=True) if v is not None and low <= v <= high]
    (line,) = [line for line in result.details["steps"] if line["step"] == "score perplexity"]
    assert line["reasons"] == {"too low": 6, "too high": 3, "no score": 1}
    check_sums(result)
    written = pq.read_table(outputs / "report/scores.parquet").to_pylist()
    assert [row["id"] for row in written] == [row["id"] for row in rows]
    assert written[2]["value"] is None
    assert [row["value"] for row in written if row["value"] is not None] == pytest.approx(known.tolist(), rel=1e-5)
    dropped = {row["id"]: row["detail"] for row in pq.read_table(outputs / "report/dropped.parquet").to_pylist()}
    assert dropped["r2"] == "perplexity: no score"
    (scores,) = result.details["scores"]
    assert (scores["rows"], scores["unscored"]) == (30, 1)
    assert scores["quantiles"]["50 %"] == pytest.approx(float(np.median(known)))


def test_rows_without_a_score_stay_or_stop_the_step(curate):
    rows = make_rows(5)
    rows[2]["completion"][0]["content"] = "long " * 60
    result, kept, _ = curate(rows, scores=[{"use": "perplexity", "model": "m", "unscored": "keep"}])
    assert len(kept) == 5
    assert result.details["scores"][0]["unscored"] == 1
    with pytest.raises(StepError, match="perplexity: 1 of 5 rows have no score"):
        curate(rows, "stopped", "other", scores=[{"use": "perplexity", "model": "m", "unscored": "stop"}])


class Killed(Exception):
    pass


def test_a_killed_curation_scores_only_the_rest_and_gives_the_same_bytes(curate, monkeypatch):
    rows, scored = make_rows(40), []
    settings = {"scores": [PERPLEXITY], "rows_per_block": 8, "diversity": {"share": 0.5}, "min_length": 2}

    @wraps(perplexity)
    def counted(block, **options):
        scored.append(len(block))
        return perplexity(block, **options)

    monkeypatch.setattr("learning.curation.row_scores.perplexity", counted)
    _, whole, outputs = curate(rows, "whole", "whole-checkpoints", **settings)
    assert scored == [8] * 5
    scored.clear()

    def stop(event):
        if event.get("step") == 24:
            raise Killed

    with pytest.raises(Killed):
        curate(rows, "killed", on_progress=stop, **settings)
    _, kept, again = curate(rows, "resumed", **settings)
    assert scored == [8] * 5
    assert kept == whole
    files = sorted(p.relative_to(outputs) for p in outputs.rglob("*") if p.is_file())
    assert [str(f) for f in files][-1] == "report/scores.parquet"
    assert all((outputs / f).read_bytes() == (again / f).read_bytes() for f in files)


def test_a_block_that_was_changed_on_the_disk_is_computed_again(curate, tmp_path):
    rows = make_rows(20)
    settings = {"scores": [{"use": "perplexity", "model": "m"}], "rows_per_block": 8}
    result, _, _ = curate(rows, "first", **settings)
    path = tmp_path / "checkpoints/scores.0/numbers"
    changed = bytearray(path.read_bytes())
    changed[70] ^= 0xFF
    path.write_bytes(changed)
    assert curate(rows, "second", **settings)[0].details["scores"] == result.details["scores"]


def test_a_model_embeds_the_mean_of_its_hidden_states(curate, tiny_policy_folder):

    rows, policy = make_rows(6), load_policy(tiny_policy_folder)
    made = hidden_states([*rows, {"prompt": []}], model=tiny_policy_folder, part="written")
    for row, vector in zip(rows, made, strict=False):
        ids = encode_text(policy.tokenizer, row["completion"][0]["content"])
        with torch.no_grad():
            states = policy.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
        np.testing.assert_allclose(vector, states.mean(0).numpy(), atol=1e-5)
    assert not made[-1].any()
    rows[5] |= {"prompt": rows[2]["prompt"], "completion": rows[2]["completion"]}
    embedding = {"use": "hidden_states", "model": "m"}
    _, kept, outputs = curate(rows, exact_dedup=False, semantic_dedup={"threshold": 0.99999, "embedding": embedding})
    assert "r5" not in kept
    dropped = {row["id"]: row["detail"] for row in pq.read_table(outputs / "report/dropped.parquet").to_pylist()}
    assert dropped["r5"] == "to r2, cosine 1.000"


def test_topics_are_balanced_and_described(curate):
    rows = make_rows(30)
    for i, row in enumerate(rows):
        row["completion"][0]["content"] = ("red green blue " if i < 24 else "one two three ") * 9
    result, kept, _ = curate(rows, exact_dedup=False, diversity={"rows": 10, "method": "topics", "topics": 2})
    assert sum(int(name[1:]) < 24 for name in kept) == 5
    assert result.details["topics"] == [
        {"rows": 24, "kept": 5, "first": "r0"},
        {"rows": 6, "kept": 5, "first": "r24"},
    ]
    check_sums(result)
