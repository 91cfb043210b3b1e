"""Changes of the registry that posttrain did not make: moved aliases, edited tags, versions registered by others."""

from collections.abc import Iterator

from lineage.audit.chain import read_chain
from lineage.layout import Layout
from lineage.registry.champions import Standing, read_standings
from lineage.registry.registered import printable


def find_foreign_changes(layout: Layout) -> dict[str, list[str]]:
    """Return, by registered model that has or had a champion, a line per change that posttrain did not make.

    Raise PlanError if the audit log does not verify or MLflow does not answer.
    """
    standings = read_standings(layout)
    own = _list_own_keys(layout) if standings else set()
    changes = {each.name: [*each.alarms, *_list_foreign_versions(each, own)] for each in standings}
    return {name: lines for name, lines in changes.items() if lines}


def _list_own_keys(layout: Layout) -> set[str]:
    """Return the keys of all artifacts that the audit log knows."""
    entries = read_chain(layout).entries
    return {str(e["facts"].get("key")) for e in entries if e["action"] in ("artifact published", "artifact restored")}


def _list_foreign_versions(standing: Standing, own: set[str]) -> Iterator[str]:
    promoted = {move.version for move in standing.moves}
    for number, version in sorted(standing.registered.versions.items()):
        if number not in promoted and version.tags.get("key") not in own:
            text = f"mlflow:{standing.name}@{number} was registered outside posttrain, from {version.source or '?'}"
            yield printable(text)
