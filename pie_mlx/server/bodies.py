"""What the endpoints take: strict models, unknown fields refused, numbers finite and inside their range."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pie_mlx.models.stops import MAX_STOPS
from pie_mlx.server.errors import BadRequestError

Model = TypeVar("Model", bound=BaseModel)

_LONGEST_STOP = 1024
_SEED = Field(None, ge=-(1 << 63), le=(1 << 64) - 1, description="the same seed gives the same answer")


class Body(BaseModel):
    """What every body has in common."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class TextPart(Body):
    """A part of a message's content; only text is supported."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """The function of a tool call; ``arguments`` is JSON as text."""

    name: str
    arguments: str = "{}"


class CalledTool(Body):
    """A tool call of an earlier turn."""

    model_config = ConfigDict(extra="ignore")

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Body):
    """One turn; other fields that clients echo (refusal, annotations …) are passed over."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class Function(Body):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool; only functions are supported."""

    type: Literal["function"]
    function: Function


class ChosenFunction(Body):
    """The name of the function that must be called."""

    name: str


class ToolChoice(Body):
    """A function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class SchemaFormat(Body):
    """A JSON schema, and what it is called."""

    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """What the answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class StreamOptions(Body):
    """What a stream tells besides the answer."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


Stops = str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None


class Sampled(Body):
    """What both kinds of completion take; a field that is null has the server's default."""

    model: str | None = None
    n: int | None = Field(None, ge=1, le=1024, description="answers; all share the prompt's pages")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stops = Field(None, description=f"up to {MAX_STOPS} texts that end the answer before them")
    seed: int | None = _SEED
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, description="0 keeps all")
    min_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    frequency_penalty: float | None = Field(None, ge=0, le=0, description="not supported: 0 or null")
    presence_penalty: float | None = Field(None, ge=0, le=0, description="not supported: 0 or null")
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = Field(
        None, description="not supported: empty or null"
    )
    user: str | None = Field(None, max_length=256, description="clients take turns by this name, else by address")
    deadline_s: float | None = Field(None, gt=0, description="end the request after this many seconds")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings.

        Raises:
            BadRequestError: one is too long; the engine itself refuses empty ones.
        """
        stops = () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if any(len(stop) > _LONGEST_STOP for stop in stops):
            raise BadRequestError(f"a stop text is longer than {_LONGEST_STOP} characters", "stop")
        return stops

    @property
    def has_usage_event(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatBody(Sampled):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    thinking: bool | None = Field(None, description="whether a reasoning model may reason first")
    store: Literal[False] | None = None
    metadata: dict[str, str] | None = Field(None, description="passed over")


class CompletionBody(Sampled):
    """The body of ``POST /v1/completions``."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: Literal[False] | None = None
    best_of: int | None = Field(None, ge=1, le=1024)
    suffix: None = None


class SearchBody(Body):
    """The body of ``POST /v1/tot``: a question or a drawn problem, and the search's parameters."""

    question: str | None = Field(None, description="none draws a problem of the task by its seed")
    task: Literal["free", "game24", "countdown", "arith", "sort", "sudoku4"] = "free"
    split: str | None = None
    stream: bool = True
    deltas: bool = Field(True, description="whether pieces of thoughts are streamed as they are written")
    user: str | None = Field(None, max_length=256)
    deadline_s: float | None = Field(None, gt=0)
    model: str | None = None
    params: dict[str, str | int | float | bool | None] = Field(
        default_factory=dict, description="as in the first line of a trace: strategy, breadth, beam, depth, seed …"
    )


class SteeringBody(Body):
    """The body of ``POST /v1/tot/{run}/{verb}``; each verb takes what it needs."""

    node: str | None = Field(None, max_length=256)
    text: str | None = None
    breadth: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=0, le=(1 << 64) - 1)
    locked: bool = True


class LoadBody(Body):
    """The body of ``POST /v1/models/{model}/load``: an empty object."""


def parse_json(raw: bytes) -> object:
    """Return what a body holds.

    Raises:
        BadRequestError: it is not UTF-8, not JSON, or holds what JSON cannot say (NaN, a lone surrogate).
    """
    if not raw:
        raise BadRequestError("the body is empty, and must be a JSON object")
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequestError(f"the body is not UTF-8 (byte {error.start})") from None
    except UnicodeEncodeError:
        raise BadRequestError("the body escapes half a character (a lone surrogate)") from None
    except RecursionError:
        raise BadRequestError("the body is nested too deeply") from None
    except ValueError as error:
        reason = f"the body is not JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise BadRequestError(reason[:300]) from None
    return value


def _refuse_constant(word: str) -> NoReturn:
    """Refuse NaN and Infinity."""
    raise ValueError(f"the body holds {word}, which is no JSON number")


def read(model: type[Model], body: object) -> Model:
    """Return a body as its model.

    Raises:
        BadRequestError: a field is unknown, missing, of the wrong type or outside its range; names the first.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        param = ".".join(str(part) for part in first["loc"] if not _is_type_tag(part))[:200]
        reason = "there is no such field" if first["type"] == "extra_forbidden" else first["msg"]
        raise BadRequestError(reason[:300], param or None) from None
    except RecursionError:
        raise BadRequestError("the body is nested too deeply") from None


def _is_type_tag(part: object) -> bool:
    """Whether a part of an error's place names a member of a union instead of a field."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "bool", "ToolChoice"))
