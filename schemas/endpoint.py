"""`endpoints:` of a recipe: servers that speak OpenAI's protocol, asked as teachers, judges or engines."""

from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, field_validator
from pydantic_core import core_schema

from schemas.base import JsonObject, Schema


class Price(Schema):
    """What a server charges, in the currency of `budget: prices`."""

    input_per_million: float = Field(default=0.0, ge=0)
    """A million tokens of prompts."""
    output_per_million: float = Field(default=0.0, ge=0)
    """A million tokens of answers."""

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        """Return the cost of so many tokens."""
        return (self.input_per_million * input_tokens + self.output_per_million * output_tokens) / 1e6


class Endpoint(Schema):
    """A server with OpenAI's protocol and the model that is asked there.

    `name`, `model`, `version`, `extra` and `omit` say what is asked: they enter keys and the cache of answers. All else
    says how: a server may move, be throttled or change its prices, and nothing is asked anew.
    """

    base_url: str = Field(pattern=r"^(https?://|\$\{env:)")
    """Address up to and with `/v1`, or `${env:NAME}`."""
    model: str = Field(min_length=1)
    """Name of the model on the server."""
    api_key: str | None = Field(default=None, repr=False)
    """`${env:NAME}`: the variable that holds the key; null for a server without keys."""
    name: str = ""
    """Tells this server's answers from those of others; default: the word under `endpoints:`."""
    version: str = ""
    """State of the model behind its name; another text asks everything anew."""
    extra: JsonObject = {}
    """Added to every request, as `{top_p: 0.9}`."""
    omit: list[str] = []
    """Keys left out of requests because the server does not take them, as `[seed]`."""
    price: Price | None = None
    """What tokens cost; null: they count as tokens, and as money only by the `prices` of the budget."""
    max_concurrency: int = Field(default=16, ge=1, le=1024)
    """Requests under way at once."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Requests are spaced so that no more are sent; null: no limit."""
    tokens_per_minute: float | None = Field(default=None, gt=0)
    """Likewise for tokens of prompts and answers; null: no limit."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds after which one try is cut off, however far its answer has come."""
    max_retries: int = Field(default=8, ge=0, le=100)
    """Further tries after a failure that may pass: a lost connection, a cut-off or unreadable answer, 408, 409, 429 and
    5xx."""
    backoff: float = Field(default=1.0, ge=0)
    """Seconds before the first further try, doubled for each one after it, with up to this much more at random; a
    server's Retry-After is waited for as well."""
    max_backoff: float = Field(default=60.0, ge=0)
    """Longest wait between tries, in seconds; a longer Retry-After is kept to nevertheless."""
    max_failed: float = Field(default=0.0, ge=0, le=1)
    """Share of requests that may fail for good before the step does; they are left out, and counted. Requests that the
    server refuses for what they ask (400, 413, 422) are always left out and counted."""

    @field_validator("base_url")
    @classmethod
    def no_password(cls, value: str) -> str:
        """An address is shown in plans and messages: it holds no password."""
        if "@" in value.partition("://")[2].partition("/")[0]:
            raise ValueError("an address with a password in it is shown in plans: write `${env:NAME}`, and set that")
        return value


class _OrWord:
    """Editors are told that a word may stand in the endpoint's place."""

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict:
        word = {"type": "string", "description": "a word under `endpoints:`"}
        return {"anyOf": [word, handler(schema)]}


EndpointOption = Annotated[Endpoint, _OrWord()]
"""An option of a function that is an endpoint: in recipes a word under `endpoints:`, or a map of its keys."""


class Capped(Schema):
    """Limits of a stage on what it makes models say."""

    max_tokens_total: int | None = Field(default=None, ge=1)
    """Cap on the tokens of remote models, prompts and answers; null: none. `synthesize` ends with what it has by then,
    and counts what a model of its own samples as well; other kinds fail, as a part of their result would be none."""
    max_cost: float | None = Field(default=None, gt=0)
    """Likewise on money, by the `price` of the endpoint."""


FIELDS = frozenset(Endpoint.model_fields)
IDENTITY = ("name", "model", "version", "extra", "omit")
CAPS = frozenset(Capped.model_fields)
"""Keys of a stage that end it: of synthesize with fewer rows, of others with an error, which is no result."""


def strip_operation(settings: JsonObject) -> JsonObject:
    """Return the settings of a stage without how its endpoints are reached and limited: the part in the key.

    An endpoint among plain values is known by its keys, which are all there.
    """
    caps = CAPS if settings.get("kind") != "synthesize" else frozenset()
    return {key: _strip_operation(value) for key, value in settings.items() if key not in caps}


def find_endpoints(settings: Any) -> list[JsonObject]:
    """Return every endpoint among the settings of a stage, as plain values."""
    if isinstance(settings, dict):
        itself = [settings] if settings.keys() == FIELDS else []
        return itself + [endpoint for value in settings.values() for endpoint in find_endpoints(value)]
    return [endpoint for value in settings for endpoint in find_endpoints(value)] if isinstance(settings, list) else []


def _strip_operation(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: value[key] for key in IDENTITY} if value.keys() == FIELDS else value
        return {key: _strip_operation(item) for key, item in kept.items()}
    return [_strip_operation(item) for item in value] if isinstance(value, list) else value
