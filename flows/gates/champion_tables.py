"""Who is champion and how that came about, for a terminal or as JSON."""

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lineage.champions import Champion, Move, champion, champions, history
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.nearest import suggest


def show_champions(layout: Layout, console: Console, as_json: bool) -> None:
    """Print all champions. Raises PlanError when MLflow cannot be asked."""
    found = champions(layout)
    if as_json:
        print(json.dumps([_plain(each) for each in found], indent=1))
        return
    table = Table("name", "version", "model", "since", "by", "who", title="Champions", title_justify="left")
    for each in found:
        model = f"{each.key[:12]}{'' if each.folder else ', not in this checkout'}"
        row = (each.name, each.version, model, _time(each.since), _why(each.by), each.by.who if each.by else "")
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table if found else "no champions yet: a recipe makes one with `promote:`", highlight=False)


def show_history(layout: Layout, name: str, console: Console, as_json: bool) -> None:
    """Print every move of a champion, latest last. Raises PlanError where there was none."""
    moves, now = history(layout, name), champion(layout, name)
    if now is None and not moves:
        known = suggest(name, [each.name for each in champions(layout)], "champions")
        raise PlanError(f"`{name}` has no champion; {known}")
    if as_json:
        print(json.dumps({"champion": _plain(now) if now else None, "moves": [asdict(m) for m in moves]}, indent=1))
        return
    table = Table("", "when", "what", "from", "to", "model", "why", "who", title_justify="left")
    table.title = f"Champions of {name}"
    for made in moves:
        before = "none" if made.before is None else made.before
        row = (made.number, _time(made.when), made.action, before, made.version, made.key[:12], _why(made), made.who)
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)
    if now is None or now.by is None:
        stands = f"at version {now.version}" if now else "nowhere"
        console.print(f"the alias stands {stands}, and not by posttrain: nothing here says why", highlight=False)


def _why(by: Move | None) -> str:
    """The gate and its run, or the words of whoever went back."""
    if by is None:
        return "set outside posttrain"
    said = by.evidence
    if "gate" not in said:
        return str(said.get("why", ""))
    return f"{said['recipe']}.{said['gate']} ({said['key'][:12]}), run {said['run']}: {'; '.join(said['gates'])}"


def _time(when: str | None) -> str:
    return (when or "?").replace("T", " ").removesuffix("+00:00")


def _plain(found: Champion) -> dict[str, object]:
    return asdict(found) | {"folder": str(found.folder) if found.folder else None}
