"""`endpoints:` of a recipe: servers with an OpenAI-compatible API, used as teachers, judges or engines."""

from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, field_validator
from pydantic_core import core_schema

from schemas.base import JsonObject, Schema


class Price(Schema):
    """Prices of a server, in the currency of `budget: prices`."""

    input_per_million: float = Field(default=0.0, ge=0)
    """Price of a million prompt tokens."""
    output_per_million: float = Field(default=0.0, ge=0)
    """Price of a million completion tokens."""

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        """Return the cost of a number of prompt and completion tokens."""
        return (self.input_per_million * input_tokens + self.output_per_million * output_tokens) / 1e6


class Endpoint(Schema):
    """A server with an OpenAI-compatible API, and the model to use there.

    `name`, `model`, `version`, `extra` and `omit` determine the answers: they enter the keys of steps and of the answer
    cache. All other fields may change (address, rate limits, prices) without any request being repeated.
    """

    base_url: str = Field(pattern=r"^(https?://|\$\{env:)")
    """Base address including `/v1`, or `${env:NAME}`."""
    model: str = Field(min_length=1)
    """Name of the model on the server."""
    api_key: str | None = Field(default=None, repr=False)
    """`${env:NAME}`, the environment variable that holds the API key; null: the server needs no key."""
    name: str = ""
    """Identifies this server's answers in the cache; default: the endpoint's name under `endpoints:`."""
    version: str = ""
    """Version of the model behind its name; a new value invalidates cached answers."""
    extra: JsonObject = {}
    """Parameters added to every request, such as `{top_p: 0.9}`."""
    omit: list[str] = []
    """Parameters left out of requests because the server does not support them, such as `[seed]`."""
    price: Price | None = None
    """Prices of tokens; null: tokens are counted, and cost money only by the `prices` of the budget."""
    max_concurrency: int = Field(default=16, ge=1, le=1024)
    """Most concurrent requests."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Rate limit in requests per minute; requests are delayed to stay below it; null: no limit."""
    tokens_per_minute: float | None = Field(default=None, gt=0)
    """Rate limit in prompt and completion tokens per minute; null: no limit."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds after which an attempt is cancelled, even if part of its answer has arrived."""
    max_retries: int = Field(default=8, ge=0, le=100)
    """Further attempts after a transient failure: a lost connection, a truncated or unreadable answer, status 408, 409,
    429 or 5xx."""
    backoff: float = Field(default=1.0, ge=0)
    """Seconds before the first further attempt, doubled for each later one, plus a random time of 0 to `backoff`
    seconds; a server's Retry-After is respected as well."""
    max_backoff: float = Field(default=60.0, ge=0)
    """Longest wait between attempts in seconds; a longer Retry-After is still respected."""
    max_failed: float = Field(default=0.0, ge=0, le=1)
    """Share of requests that may fail permanently before the step fails; they are left out and counted. Requests whose
    content the server refuses (400, 413, 422) are always left out and counted."""

    @field_validator("base_url")
    @classmethod
    def refuse_password(cls, value: str) -> str:
        """Refuse an address with a password, because plans and messages show it."""
        if "@" in value.partition("://")[2].partition("/")[0]:
            raise ValueError(
                "plans would show the password in this address; write `${env:NAME}` and set that environment variable"
            )
        return value


class _OrName:
    """Adds the name of an endpoint, as an alternative to its keys, to the JSON Schema for editors."""

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict:
        name = {"type": "string", "description": "a name under `endpoints:`"}
        return {"anyOf": [name, handler(schema)]}


EndpointOption = Annotated[Endpoint, _OrName()]
"""Type of an endpoint option of a function: in recipes a name under `endpoints:`, or a map of its keys."""


class Capped(Schema):
    """Limits of a stage on tokens and cost of remote models."""

    max_tokens_total: int | None = Field(default=None, ge=1)
    """Most prompt and completion tokens of remote models; null: no limit. At the limit, `synthesize`, which counts the
    samples of a local model too, ends with the rows made so far; other kinds fail, as partial results are not valid."""
    max_cost: float | None = Field(default=None, gt=0)
    """Most cost of remote models, by the `price` of their endpoints; null: no limit. Works as `max_tokens_total`."""


FIELDS = frozenset(Endpoint.model_fields)
IDENTITY = ("name", "model", "version", "extra", "omit")
CAPS = frozenset(Capped.model_fields)
"""Limits of a stage. They enter the key of `synthesize`, which ends with fewer rows at a limit; other kinds fail."""


def strip_operation(settings: JsonObject) -> JsonObject:
    """Return the part of a stage's settings that enters its key: without the operational fields of its endpoints.

    A map is an endpoint if it has exactly the keys of one.
    """
    caps = CAPS if settings.get("kind") != "synthesize" else frozenset()
    return {key: _strip_operation(value) for key, value in settings.items() if key not in caps}


def find_endpoints(settings: Any) -> list[JsonObject]:
    """Return every endpoint in the settings of a stage, as plain values."""
    if isinstance(settings, dict):
        own = [settings] if settings.keys() == FIELDS else []
        return own + [endpoint for value in settings.values() for endpoint in find_endpoints(value)]
    return [endpoint for value in settings for endpoint in find_endpoints(value)] if isinstance(settings, list) else []


def _strip_operation(value: Any) -> Any:
    if isinstance(value, dict):
        identity = {key: value[key] for key in IDENTITY} if value.keys() == FIELDS else value
        return {key: _strip_operation(item) for key, item in identity.items()}
    return [_strip_operation(item) for item in value] if isinstance(value, list) else value
