"""The form of a recipe's deployment in Prefect's UI: a JSON Schema of a few typed fields."""

from collections.abc import Sequence

from schemas.base import JsonObject
from schemas.recipe.load import Recipe


def make_form(recipe: Recipe, profiles: Sequence[str], stages: Sequence[str]) -> JsonObject:
    """Return the parameters of a recipe's deployment, as the OpenAPI schema that Prefect stores."""
    fields: dict[str, JsonObject] = {}
    if profiles:
        fields["profile"] = {
            "type": "string",
            "title": "Profile",
            "enum": list(profiles),
            "description": "Named set of overrides in the recipe; empty: the recipe without overrides.",
        }
    fields |= {
        "seed": {
            "type": "integer",
            "title": "Seed",
            "minimum": 0,
            "maximum": 2**31 - 1,
            "description": "Seed of every stage without its own; empty: that of the recipe or the profile "
            f"({recipe.head.seed}).",
        },
        "from_stages": {
            "type": "array",
            "title": "From",
            "items": {"type": "string", "enum": list(stages)},
            "default": [],
            "description": "Start at these stages; earlier steps must be cached. Empty: at the beginning.",
        },
        "to_stages": {
            "type": "array",
            "title": "To",
            "items": {"type": "string", "enum": list(stages)},
            "default": [],
            "description": "Run only these stages and their ancestors. Empty: all.",
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
            "description": "Run cached steps again; the earlier artifacts stay and are compared.",
        },
    }
    for place, field in enumerate(fields.values()):
        field["position"] = place
    names = {"enum": [*fields, "recipe"]}  # set by the deployment, not a field of the form
    return {"type": "object", "title": "Parameters", "properties": fields, "propertyNames": names, "required": []}


def make_locked_form(form: JsonObject, recipe: str, digest: str) -> JsonObject:
    """Return the form of a locked deployment: stages and `fresh`, nothing that changes them."""
    fields = {name: form["properties"][name] for name in ("from_stages", "to_stages", "fresh")}
    same = {"properties": {"recipe": {"const": recipe}, "locked": {"const": digest}}}
    names = {"enum": [*fields, "recipe", "locked"]}
    return form | {"properties": fields, "propertyNames": names, "allOf": [same]}
