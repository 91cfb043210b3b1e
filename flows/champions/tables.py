"""Champions and their history, for a terminal or as JSON."""

import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lineage.audit.moves import Move
from lineage.layout import Layout
from lineage.registry.champions import Champion, Standing, read_standing, read_standings
from schemas.errors import PlanError
from schemas.suggestions import suggest


def show_champions(layout: Layout, console: Console, as_json: bool) -> int:
    """Print all champions and the differences in MLflow; return the exit code, 1 with an alarm.

    Raise PlanError if the audit log does not verify or MLflow does not answer.
    """
    current = read_standings(layout)
    shown = [each.champion for each in current if each.champion]
    code = 1 if any(each.alarms for each in current) else 0
    if as_json:
        print(json.dumps([_as_json(each) for each in current], indent=1))
        return code
    table = Table("name", "version", "model", "since", "by", "who", title="Champions", title_justify="left")
    for each in shown:
        model = f"{each.key[:12]}{'' if each.folder else ', not in this checkout'}"
        row = (each.name, each.version, model, _format_time(each.since), _format_reason(each.by), each.by.who)
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table if shown else "no champions yet: a recipe makes one with `promote:`", highlight=False)
    for each in current:
        _print_alarms(each, console)
    return code


def show_history(layout: Layout, name: str, console: Console, as_json: bool) -> int:
    """Print every move of a champion, latest last, and the differences in MLflow; return the exit code.

    Raise PlanError if there was none.
    """
    here = read_standing(layout, name)
    if not here.moves and not here.alarms:
        suggestion = suggest(name, [each.name for each in read_standings(layout)], "champions")
        raise PlanError(f"`{name}` has no champion; {suggestion}")
    code = 1 if here.alarms else 0
    if as_json:
        content = {"champion": _as_json(here) if here.champion else None, "moves": [m.plain() for m in here.moves]}
        print(json.dumps(content | {"alarms": here.alarms}, indent=1))
        return code
    table = Table("", "when", "what", "from", "to", "model", "why", "who", title_justify="left")
    table.title = f"Champions of {name}"
    for made in here.moves:
        before = "none" if made.before is None else made.before
        row = (
            made.number,
            _format_time(made.when),
            made.action,
            before,
            made.version,
            made.key[:12],
            _format_reason(made),
            made.who,
        )
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)
    _print_alarms(here, console)
    return code


def _print_alarms(here: Standing, console: Console) -> None:
    """Print the differences between MLflow and the log, and how to correct them."""
    for line in here.alarms:
        console.print(Text.assemble(("ALARM ", "red"), line), soft_wrap=True, highlight=False)
    if here.alarms:
        advice = "a move was cut off; finish it" if here.is_unfinished else "the audit log counts; write MLflow from it"
        console.print(Text(f"{advice}: posttrain champions {here.name} --restore"), soft_wrap=True, highlight=False)


def _format_reason(by: Move) -> str:
    """Return the gate and its run, or the reason of a rollback."""
    evidence = by.evidence
    if "gate" not in evidence:
        return str(evidence.get("why", ""))
    gates = "; ".join(map(str, evidence.get("gates", [])))
    evaluation = f"{evidence.get('recipe')}.{evidence['gate']} ({str(evidence.get('key'))[:12]})"
    why = f"{evaluation}, run {evidence.get('run')}: {gates}"
    if canary := evidence.get("canary"):
        why = f"{why}; canary: {canary['reason']}"
    let = evidence.get("override")
    return f"{why}; not the committed gate, approved by {let['approved_by']}: {let['why']}" if let else why


def _format_time(when: str) -> str:
    return when.replace("T", " ").removesuffix("+00:00")


def _as_json(here: Standing) -> dict[str, object]:
    """Return a champion as JSON; without one, only the name and the alarms."""
    now: Champion | None = here.champion
    if now is None:
        return {"name": here.name, "version": None, "alarms": here.alarms}
    folder = str(now.folder) if now.folder else None
    plain = {name: value for name, value in vars(now).items() if name not in ("by", "folder")}
    return plain | {"folder": folder, "by": now.by.plain(), "alarms": here.alarms}
