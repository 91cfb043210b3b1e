"""The form of a recipe's deployment in Prefect's UI: a JSON Schema of few, typed fields, made for this recipe.

Prefect's pages draw it and its server holds runs to it, also those started through the API.
"""

from collections.abc import Sequence
from typing import Any

from schemas.recipe.load import Recipe

Schema = dict[str, Any]


def make_form(recipe: Recipe, profiles: Sequence[str], stages: Sequence[str]) -> Schema:
    """The parameters of a recipe's deployment, as the OpenAPI schema that Prefect stores."""
    fields: dict[str, Schema] = {}
    if profiles:
        fields["profile"] = {
            "type": "string",
            "title": "Profile",
            "enum": list(profiles),
            "description": "Named set of overrides in the recipe; empty: the recipe as it stands.",
        }
    fields |= {
        "seed": {
            "type": "integer",
            "title": "Seed",
            "minimum": 0,
            "maximum": 2**31 - 1,
            "description": "Of every stage that has none of its own; empty: as the recipe or the profile says "
            f"({recipe.head.seed}).",
        },
        "from_stages": {
            "type": "array",
            "title": "From",
            "items": {"type": "string", "enum": list(stages)},
            "default": [],
            "description": "Begin at these stages; what is before must be there. Empty: at the beginning.",
        },
        "to_stages": {
            "type": "array",
            "title": "To",
            "items": {"type": "string", "enum": list(stages)},
            "default": [],
            "description": "Only these stages and what they need. Empty: all.",
        },
        "overrides": {
            "type": "array",
            "title": "Overrides",
            "default": [],
            "items": {"type": "string", "pattern": r"^[^=\s]+=.*$"},
            "description": "Keys to set in the recipe, each as stages.x.y=value.",
        },
        "fresh": {
            "type": "boolean",
            "title": "Fresh",
            "default": False,
            "description": "Do again what is there already; the earlier artifacts stay and are compared.",
        },
    }
    for place, field in enumerate(fields.values()):
        field["position"] = place
    known = {"enum": [*fields, "recipe"]}  # which is no field of the form: the deployment says it
    return {"type": "object", "title": "Parameters", "properties": fields, "propertyNames": known, "required": []}


def make_locked_form(whole: Schema, recipe: str, digest: str) -> Schema:
    """The form of a deployment that is held to a lock: which stages and whether afresh, nothing that changes them."""
    fields = {name: whole["properties"][name] for name in ("from_stages", "to_stages", "fresh")}
    same = {"properties": {"recipe": {"const": recipe}, "locked": {"const": digest}}}
    known = {"enum": [*fields, "recipe", "locked"]}
    return whole | {"properties": fields, "propertyNames": known, "allOf": [same]}
