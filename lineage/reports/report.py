"""The report of a run: one self-contained HTML file, made from the plan, the states and the manifests."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lineage.artifacts.store import Store
from lineage.audit.approvals import describe_decision, latest_decision
from lineage.layout import Layout
from lineage.records import read_lines
from lineage.reports.cost import compute_costs
from lineage.reports.curves import Curve, read_bands, read_curves
from lineage.reports.descent import Find, select_comparisons
from lineage.reports.formatting import format_duration, format_number, format_size
from lineage.reports.graph import draw_steps
from lineage.reports.headline import make_headlines
from lineage.reports.recordings import read_recordings
from lineage.reports.settings import list_settings
from schemas.base import JsonObject
from schemas.manifest import NOTICES, Manifest
from schemas.plan import Plan
from schemas.stages.base import ReportSection
from schemas.stages.union import KINDS

FILE = "report.html"


def write_report(
    plan: Plan, states: dict[str, JsonObject], manifests: dict[str, Manifest], layout: Layout, run: str
) -> Path:
    """Write `report.html` into the run's folder and return its path.

    `states` are the steps' last events ({state, seconds, reason}); a step without one is pending.
    """
    html = render_page("report.html.j2", collect_content(plan, states, manifests, layout, run))
    file = layout.run(run) / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(html, encoding="utf-8")
    return file


def render_page(template: str, content: JsonObject) -> str:
    """Return a page of this folder as HTML; texts in `content` are escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": format_number, "duration": format_duration, "size": format_size}
    return environment.get_template(template).render(content)


def collect_content(
    plan: Plan, states: dict[str, JsonObject], manifests: dict[str, Manifest], layout: Layout, run: str
) -> JsonObject:
    """Return the values of the template."""
    state = {step.name: str(states.get(step.name, {}).get("state", "pending")) for step in plan.steps}
    made = {step.name: manifests[step.name] for step in plan.steps if step.name in manifests}
    gates, costs = list(collect_gate_rows(plan, made, layout)), compute_costs(plan, made, state, layout, run)
    evaluations = {name: m for name, m in made.items() if m.kind == "evaluate"}
    find = make_finder(made, layout)
    comparisons = {name: select_comparisons(m, find) for name, m in evaluations.items()}
    drawn = draw_charts({name: layout.artifact(m.kind, m.key) / "metrics.jsonl" for name, m in made.items()})
    return {
        "plan": plan,
        "run": run,
        "states": state,
        "counts": {s: list(state.values()).count(s) for s in dict.fromkeys(state.values())},
        "commit": next((m.commit for m in made.values() if m.commit), None),
        "dirty": any(m.dirty for m in made.values()),
        "started": min((m.started for name, m in made.items() if state[name] == "done"), default=None),
        "reasons": {n: s["reason"] for n, s in states.items() if s.get("reason")},
        "notices": {name: m.details[NOTICES] for name, m in made.items() if m.details.get(NOTICES)},
        "settings": list_settings(plan),
        "picture": draw_steps(plan, state),
        "curves": {name: charts for name, charts in drawn.items() if charts},
        "headlines": make_headlines(comparisons, gates, costs.total.spent if "done" in state.values() else None),
        "recipe_commit": _read_recipe_commit(layout, run),
        "gates": gates,
        "sections": collect_sections(made),
        "comparisons": comparisons,
        "recordings": read_recordings(made, layout),
        "manifests": made,
        "costs": costs,
    }


def draw_charts(files: dict[str, Path]) -> dict[str, list[Curve]]:
    """Return the charts of every step; of runs that differ in their seed alone, those of their mean."""
    groups: dict[str, list[str]] = {}
    for name in files:
        groups.setdefault(re.sub(r"(?<=[@,])seed=[^,]*", "seed=*", name), []).append(name)
    return {
        shared: read_bands([files[name] for name in names]) if len(names) > 1 else read_curves(files[names[0]])
        for shared, names in groups.items()
    }


def make_finder(made: dict[str, Manifest], layout: Layout) -> Find:
    """Return a function that finds the manifest of a key, among those of a run or in the store."""
    known: dict[str, Manifest | None] = {manifest.key: manifest for manifest in made.values()}

    def find(key: str) -> Manifest | None:
        if key not in known:
            known[key] = Store(layout).with_key(key)
        return known[key]

    return find


def _read_recipe_commit(layout: Layout, run: str) -> str | None:
    """Return the commit of the recipe's folder when the run began, and whether it had changes; None outside of Git."""
    for event in read_lines(layout.run(run) / "events.jsonl"):
        if event["type"] == "run" and event.get("recipe_commit"):
            return f"{event['recipe_commit'][:12]}{' + changes' if event.get('recipe_dirty') else ''}"
    return None


@dataclass(frozen=True)
class Section:
    """The details of the steps of one kind, and the template that shows them as `details`."""

    template: str
    is_result: bool
    details: dict[str, JsonObject]


def collect_sections(made: dict[str, Manifest]) -> list[Section]:
    """Return a section for every kind that has one and of which some step has something to show."""
    sections: list[Section] = []
    for kind, stage in KINDS.items():
        section = stage.report_section
        if section is None:
            continue
        details = {name: manifest.details for name, manifest in made.items() if manifest.kind == kind}
        shown = {name: values for name, values in details.items() if _is_shown(section, values)}
        if shown:
            sections.append(Section(f"sections/{kind}.html.j2", section.is_result, shown))
    return sections


def _is_shown(section: ReportSection, details: JsonObject) -> bool:
    return section.detail in details and (section.may_be_empty or bool(details[section.detail]))


FOLLOWS = {"stop": "failed", "warn": "failed, with a warning", "approve": "awaits approval"}


def collect_gate_rows(plan: Plan, made: dict[str, Manifest], layout: Layout) -> Iterator[JsonObject]:
    """Yield one row per gate of the finished steps."""
    for name, manifest in made.items():
        policies = plan.step(name).settings.get("gate") or []
        for index, gate in enumerate(manifest.details.get("gates", [])):
            policy = policies[index] if index < len(policies) else gate
            good, outcome, decided = bool(gate.get("passed")), "passed", None
            if not good:
                on_fail = policy.get("on_fail", "stop")
                outcome = FOLLOWS.get(on_fail) or f"failed, branched to {', '.join(policy['branch'])}"
                decided = latest_decision(layout, manifest.key, index) if on_fail == "approve" else None
            if decided is not None:
                good = decided["decision"] == "approve"
                outcome = "failed, approved" if good else "failed, rejected"
            texts = [str(gate.get("text", "")), *([describe_decision(decided)] if decided else [])]
            is_open = outcome == FOLLOWS["approve"]
            yield {"step": name, "good": None if is_open else good, "outcome": outcome, "texts": texts}
