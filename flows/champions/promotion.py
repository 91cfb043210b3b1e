"""Promote a model that passed the gates of an evaluation; otherwise report the reason."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from flows.champions.committed_recipe import Committed, list_gate_changes, list_promotion_changes, read_committed_recipe
from flows.execution.audit_entries import read_verified_plan
from flows.execution.states import FINISHED, StepState
from lineage.artifacts.artifact_check import check_artifact
from lineage.artifacts.store import Store
from lineage.audit import log as audit_log
from lineage.audit.approvals import describe_decision, latest_decision
from lineage.audit.chain import read_chain
from lineage.catalogue.index import query_index
from lineage.digests import digest_of
from lineage.layout import Layout
from lineage.registry.champions import find_champion, move_champion, read_standing
from lineage.registry.client import hide_credentials, is_registry_empty, registry_uri
from lineage.tracing.target import find_target
from schemas.atomic_write import write_text_atomically
from schemas.errors import GateError, PlanError
from schemas.manifest import InputRecord, Manifest
from schemas.plan import Plan, Promotion


@dataclass(frozen=True)
class Verdict:
    """Whether the champion moved, and the message about it."""

    name: str
    moved: bool
    text: str


def promote_after(plan: Plan, states: dict[str, StepState], layout: Layout) -> Verdict | None:
    """Apply the recipe's `promote` after a run; never raise, since the run has ended. Return None without `promote`.

    One evaluation promotes a model once: a run that finds all artifacts does not undo a rollback.
    """
    promotion = plan.promotion
    if promotion is None:
        return None
    try:
        return _promote_finished(plan, promotion, states, layout)
    except (GateError, PlanError, OSError) as error:
        return Verdict(promotion.name, False, f"champion of {promotion.name} unchanged: {error}")


def _promote_finished(plan: Plan, promotion: Promotion, states: dict[str, StepState], layout: Layout) -> Verdict:
    """Promote what a run has finished. Raise GateError or PlanError with the reason against it."""
    (step, gate), (_, model) = _find_finished(promotion.gates, states), _find_finished(promotion.models, states)

    def add_committed() -> dict[str, object]:
        committed = read_committed_recipe(plan.file, plan.profile, layout)
        if differences := list_promotion_changes(plan, committed, layout):
            raise OverriddenGate(differences)
        return _describe_recipe(plan, committed)

    approved = {state.index: state.text for state in states[step].gates if state.verdict == "approved"}
    evidence = collect_evidence(layout, gate, model, promotion.output, approved)
    if earlier := _find_earlier_promotion(layout, promotion, gate, model):
        reason = f"{gate.step} made {model.step} ({model.key[:12]}) champion before, on {earlier}"
        raise GateError(f"{reason}; see: posttrain champions")
    try:
        verdict = promote(layout, promotion.name, gate, model, promotion.output, evidence, add_committed)
    except OverriddenGate as error:
        command = f"posttrain promote {model.key[:16]} --gate {gate.key[:16]} --name {promotion.name}"
        raise OverriddenGate(error.changes, f"; to promote anyway: {command} --approve-override --why TEXT") from None
    _write_note(layout, promotion, gate, model)
    return verdict


def promote_step(
    layout: Layout,
    model_word: str,
    gate_word: str,
    name: str,
    *,
    approve: bool = False,
    who: str | None = None,
    why: str = "",
    live: dict[str, object] | None = None,
) -> Verdict:
    """Promote an existing model by an existing evaluation.

    `approve`: a person answers for a gate that differs from the committed recipe, by name and reason. `live`: further
    evidence, of a canary. Raise GateError if the evaluation does not prove the model, PlanError if one of them is not
    found.
    """
    if approve and not why.strip():
        raise PlanError("--approve-override needs a reason: --why TEXT")
    model, gate = find_artifact(layout, model_word), find_artifact(layout, gate_word)
    output, evidence = _collect_step_evidence(layout, model, gate)

    def add_committed() -> dict[str, object]:
        differences, evidence = _find_changes(layout, gate, model)
        if differences and not approve:
            raise OverriddenGate(differences)
        answered = {"approved_by": audit_log.name_person(who), "why": why.strip(), "changes": differences}
        return evidence | ({"override": answered} if differences else {})

    try:
        return promote(layout, name, gate, model, output, evidence | (live or {}), add_committed)
    except OverriddenGate as error:
        raise OverriddenGate(error.changes, "; to promote anyway: --approve-override --why TEXT") from None


def check_promotable(layout: Layout, model_word: str, gate_word: str) -> None:
    """Raise GateError or PlanError if an evaluation does not allow a model's promotion, as `promote_step` would."""
    model, gate = find_artifact(layout, model_word), find_artifact(layout, gate_word)
    _collect_step_evidence(layout, model, gate)
    if differences := _find_changes(layout, gate, model)[0]:
        raise OverriddenGate(differences)


def _collect_step_evidence(layout: Layout, model: Manifest, gate: Manifest) -> tuple[str, dict[str, object]]:
    """Return the output of a model that an evaluation tested, and its evidence. Raise GateError without one."""
    output = next(iter(model.outputs))
    judged = {record.output for record in _list_models(gate) if record.key == model.key and record.output}
    if judged:
        output = next(name for name in (output, *sorted(judged)) if name in judged)
    decisions = ((i, latest_decision(layout, gate.key, i)) for i in range(len(gate.details.get("gates", []))))
    approved = {
        i: describe_decision(decided) for i, decided in decisions if decided and decided["decision"] == "approve"
    }
    return output, collect_evidence(layout, gate, model, output, approved)


def _find_changes(layout: Layout, gate: Manifest, model: Manifest) -> tuple[list[str], dict[str, object]]:
    """Return how the run that made an evaluation differs from the committed recipe, and evidence for it."""
    try:
        plan = read_verified_plan(layout, gate.run)
        committed = read_committed_recipe(plan.file, plan.profile, layout)
    except PlanError as error:
        return [str(error)], {}
    gates = tuple(step.name for step in plan.steps if step.key == gate.key)
    models = tuple(step.name for step in plan.steps if step.key == model.key)
    if not gates:
        return [f"run {gate.run} did not plan {gate.step} ({gate.key[:12]})"], {}
    return list_gate_changes(plan, committed, layout, gates, models), _describe_recipe(plan, committed)


def _describe_recipe(plan: Plan, committed: Committed) -> dict[str, object]:
    """Return the evidence of the recipe that a plan was made from: its committed version and the overrides."""
    overrides: dict[str, object] = {"set": list(plan.overrides)} if plan.overrides else {}
    return {"committed": committed.evidence(), **overrides}


class OverriddenGate(GateError):
    """The gate that passed is not that of the committed recipe."""

    def __init__(self, changes: list[str], advice: str = ""):
        self.changes = changes
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        super().__init__(f"settings differ from the committed recipe: {', '.join(changes[:3])}{more}{advice}")


def promote(
    layout: Layout,
    name: str,
    gate: Manifest,
    model: Manifest,
    output: str,
    evidence: dict[str, object],
    add_committed: Callable[[], dict[str, object]],
) -> Verdict:
    """Make a model champion by an evaluation; `add_committed` returns what the committed recipe adds to the evidence.

    Raise PlanError if either is damaged or the champion moved meanwhile, GateError if `add_committed` does.
    """
    check_artifact(layout, gate)
    before = find_champion(layout, name)
    current, compared = before.version if before else 0, _find_compared_version(gate, name)
    if compared is not None and compared != current:
        raise PlanError(
            f"{gate.step} compared with an earlier champion of {name} "
            f"({_describe_version(compared)}); it is now {_describe_version(current)}: evaluate again"
        )
    digest = model.outputs[output].digest
    after = move_champion(
        layout, name, model.key, evidence=evidence | add_committed(), output=output, expected=before, digest=digest
    )
    if before is not None and before.by == after.by:
        reason = f"{model.step} is the champion of {name} already: version {after.version}, since {after.since}"
        return Verdict(name, False, reason)
    who = f"{model.step} ({model.key[:12]}), by {gate.step}"
    return Verdict(name, True, f"champion of {name}: {_describe_version(current)} → version {after.version}, {who}")


def collect_evidence(
    layout: Layout, gate: Manifest, model: Manifest, output: str, approved: Mapping[int, str]
) -> dict[str, object]:
    """Return the evidence of an evaluation for a model. Raise GateError with the reason if there is none.

    `approved`: gates, by index, that a person let through, with their words; the audit log must record it too.
    """
    digest = model.outputs[output].digest if output in model.outputs else ""
    names = {_model_name(record) for record in _list_models(gate) if (record.key, record.digest) == (model.key, digest)}
    outcomes: list[dict[str, object]] = gate.details.get("gates", [])
    if not names:
        raise GateError(f"{gate.step} ({gate.key[:12]}) did not evaluate {model.step} ({model.key[:12]})")
    if not any(outcome.get("model") in names for outcome in outcomes):
        raise GateError(f"no gate of {gate.step} ({gate.key[:12]}) tests {model.step}")
    let_through = {i for i, outcome in enumerate(outcomes) if i in approved and not outcome.get("passed")}
    if unknown := sorted(let_through - _find_approvals(layout, gate.key)):
        raise GateError(f"the audit log has no approval of gate {unknown[0]} of {gate.step}: approve it again")
    texts = [approved.get(i, str(outcome["text"])) for i, outcome in enumerate(outcomes)]
    failed = [text for i, text in enumerate(texts) if not outcomes[i].get("passed") and i not in approved]
    if failed:
        raise GateError(f"the gate of {gate.step} did not pass: {'; '.join(failed)}")
    by_hand = {"approved": sorted(approved)} if approved else {}
    return {"gate": gate.step, "key": gate.key, "run": gate.run, "recipe": gate.recipe, "gates": texts, **by_hand}


def _find_approvals(layout: Layout, key: str) -> set[int]:
    """Return the gates of an evaluation whose last decision in the audit log is an approval."""
    approvals: dict[int, str] = {}
    for entry in read_chain(layout).entries:
        if entry["action"] in ("approve", "reject") and entry["facts"].get("key") == key:
            approvals[int(entry["facts"]["gate"])] = entry["action"]
    return {index for index, action in approvals.items() if action == "approve"}


def find_artifact(layout: Layout, word: str) -> Manifest:
    """Return the one artifact that a step, key or folder names. Raise PlanError otherwise."""
    target = query_index(layout, lambda index: find_target(index, word))
    if len(target.keys) != 1:
        raise PlanError(f"{word} ({target.what}) matches {len(target.keys)} artifacts: name a step or a key")
    manifest = Store(layout).with_key(target.keys[0])
    if manifest is None:
        raise PlanError(f"the artifact {target.keys[0][:16]} of {word} is damaged; see: posttrain lineage --verify")
    return manifest


def _find_finished(names: tuple[str, ...], states: dict[str, StepState]) -> tuple[str, Manifest]:
    """Return the first of some steps that has an artifact. Raise GateError without one."""
    for name in names:
        if name in states and states[name].state in FINISHED and (manifest := states[name].manifest):
            return name, manifest
    name = names[-1]
    raise GateError(f"{name} {states[name].state}" if name in states else f"{name} is not part of this run")


def _list_models(gate: Manifest) -> list[InputRecord]:
    """Return the models that an evaluation evaluated."""
    return [record for record in gate.inputs if record.port == "model" or record.port.startswith("models.")]


def _model_name(record: InputRecord) -> str:
    return record.port.removeprefix("models.")


def _find_earlier_promotion(layout: Layout, promotion: Promotion, gate: Manifest, model: Manifest) -> str | None:
    """Return when an evaluation promoted a model, None if it did not; a note answers before MLflow does."""
    note = _note_path(layout, promotion, gate, model)
    if note.is_file() and not is_registry_empty(layout):
        return note.read_text()
    here = read_standing(layout, promotion.name)
    when = next((m.when for m in here.moves if (m.key, m.evidence.get("key")) == (model.key, gate.key)), None)
    if when is not None and not here.is_unfinished:
        _write_note(layout, promotion, gate, model, when)
    return None if here.is_unfinished else when


def _write_note(layout: Layout, promotion: Promotion, gate: Manifest, model: Manifest, when: str | None = None) -> None:
    write_text_atomically(
        _note_path(layout, promotion, gate, model), when or datetime.now(UTC).isoformat(timespec="seconds")
    )


def _note_path(layout: Layout, promotion: Promotion, gate: Manifest, model: Manifest) -> Path:
    where = hide_credentials(registry_uri(layout))
    return layout.state / "promoted" / digest_of([where, promotion.name, gate.key, model.key, promotion.output])


def _find_compared_version(gate: Manifest, name: str) -> int | None:
    """Return the champion's version that a gate compared with, 0 without a champion; None if it did not compare."""
    versions = [re.fullmatch(rf"mlflow:{re.escape(name)}@(\d+)", record.source or "") for record in gate.inputs]
    if version := next(filter(None, versions), None):
        return int(version[1])
    if any(record.port.startswith("against.champion") for record in gate.inputs):
        return None  # the champion of another name
    gates = gate.identity.get("settings", {}).get("gate") or []
    is_compared = any(each.get("against") == "champion" and each.get("champion") in (None, name) for each in gates)
    return 0 if is_compared else None


def _describe_version(version: int) -> str:
    return f"version {version}" if version else "none"
