"""Recorded episodes inside of the report of a run."""

import base64
import re

from lineage.layout import Layout
from lineage.reports.report import write_report
from schemas.manifest import Manifest, Output
from schemas.plan import Plan, Step

KEY = "ab" * 32
HOSTILE = '"><script>alert("x")</script>'


def test_a_gif_is_in_the_page_and_a_missing_one_is_named(tmp_path):
    layout = Layout(tmp_path)
    row = {"model": HOSTILE, "start": 0, "file": "recordings/0-a-0.gif", "steps": 4, "frames": 5, "return": 0.25}
    line = {"model": "a", "family": "all", "metric": "mean_return", "value": 0.2, "low": 0.1, "high": 0.3, "n": 2}
    details = {"table": [line], "recordings": [row, {**row, "file": "recordings/0-a-1.gif", "start": 1}]}
    output = Output(type="eval_report", digest="e" * 64, dvc="f.dir", files=())
    common = {"key": KEY, "identity": {}, "seed": 0}
    manifest = Manifest(
        **common,
        kind="evaluate_control",
        step="report",
        recipe="r",
        run="x",
        inputs=(),
        outputs={"report": output},
        commit="abcdef0123456789",
        started="2026-01-02T03:04:05+00:00",
        seconds=1.0,
        cpu_seconds=1.0,
        peak_rss=1,
        details=details,
    )
    kind = {"kind": "evaluate_control", "settings": {}, "outputs": {"report": "eval_report"}}
    step = Step(**common, **kind, name="report", stage="report", inputs=(), code={})
    folder = layout.artifact("evaluate_control", KEY) / "outputs" / "report" / "recordings"
    folder.mkdir(parents=True)
    content = b"GIF89a and so on"
    (folder / "0-a-0.gif").write_bytes(content)
    plan = Plan(recipe="r", file="r.yaml", steps=(step,), resolved={})
    html = write_report(plan, {"report": {"state": "done"}}, {"report": manifest}, layout, "run").read_text()
    (shown,) = re.findall(r'<img [^>]*src="data:image/gif;base64,([^"]*)"', html)
    assert base64.b64decode(shown) == content
    assert "start 0: 0.25 in 4 steps" in html
    assert "recordings/0-a-1.gif is not on this machine" in html
    assert "Episodes · report" in html
    assert "<script>" not in html
