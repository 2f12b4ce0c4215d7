"""``pie-mlx run``: one prompt, one answer, or n answers from forks of one context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pie_mlx.cli.options import EngineFlags, Group, OutputFlags, SamplingFlags
from pie_mlx.cli.prompt import gather_prompt
from pie_mlx.errors import InvalidParameter, PieError, UsageError

if TYPE_CHECKING:
    from pie_mlx.cli.answering import Ask, Form
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.config import Settings


@dataclass(frozen=True)
class AnswerFlags(Group):
    """What to ask for, and in which form."""

    system: Annotated[str | None, typer.Option("--system", "-s", help="System message.")] = None
    file: Annotated[list[Path] | None, typer.Option("--file", "-f", help="Attach a text file; may be repeated.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Answer in JSON that this JSON Schema allows.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Seed of the draws (default: a new one each time).")] = None
    logprobs: Annotated[int | None, typer.Option(metavar="N", help="Report the N likeliest tokens (JSON).")] = None
    n: Annotated[int, typer.Option("--n", metavar="N", help="Answers; all fork one context and run in one batch.")] = 1
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")] = False
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object a piece, then the final one.")] = False
    hide_reasoning: Annotated[bool, typer.Option("--hide-reasoning", help="Do not show the model's reasoning.")] = False


def run(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads it from stdin.", show_default=False)] = None,
    *,
    answer: AnswerFlags,
    sampling: SamplingFlags,
    engine: EngineFlags,
    output: OutputFlags,
) -> None:
    """Answer one prompt. Text from a pipe and from --file is added to it."""
    from pie_mlx.cli.answering import Answerer
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.options import load_config, model_name, open_engine, tokenizer_of

    settings = load_config(engine, sampling, answer, output).settings
    stderr = Stderr(settings.color)
    _check_flags(answer, output, settings.system)
    schema = _schema_of(answer)
    ask = _make_ask(gather_prompt(prompt, answer.file or (), stderr=stderr), answer, settings, schema)
    if ask.num_answers > 1 and ask.sampling.is_greedy:
        stderr.note(f"all {ask.num_answers} answers will be alike at --temp 0")
    with stderr.waiting(f"loading {model_name(settings)}"):
        running = open_engine(settings)
    with running:
        answerer = Answerer(running, tokenizer_of(running), ask)
        tokens = answerer.prompt()
        for notice in tokens.notices:
            stderr.note(notice)
        code = answerer.run(tokens, _make_form(answer, output, stderr, settings))
    if code:
        if code == PieError.exit_code:
            stderr.note(f"cut after {settings.max_tokens} tokens, before the JSON was complete: raise --max-tokens")
        raise typer.Exit(code)


def _check_flags(answer: AnswerFlags, output: OutputFlags, system: str | None) -> None:
    """Refuse what has no meaning before anything is loaded."""
    if answer.n < 1:
        raise InvalidParameter("--n", answer.n, "1 or more")
    if answer.raw and system:
        raise UsageError("--raw leaves no place for a system message", "drop --raw or the system message")
    if answer.logprobs is not None and not (output.json or answer.jsonl):
        raise UsageError("--logprobs shows only in JSON", "add --json or --jsonl")
    if any(not text for text in answer.stop or ()):
        raise InvalidParameter("--stop", "", "text that is not empty")


def _schema_of(answer: AnswerFlags) -> Mapping[str, Any] | None:
    """Read the schema's file, if there is one."""
    if answer.schema is None:
        return None
    from pie_mlx.cli.schema_file import read_schema

    return read_schema(answer.schema)


def _make_ask(prompt: str, answer: AnswerFlags, settings: Settings, schema: Mapping[str, Any] | None) -> Ask:
    """Put the ask together."""
    from pie_mlx.cli.answering import Ask
    from pie_mlx.cli.options import sampling_of

    if settings.max_tokens < 1:
        raise InvalidParameter("max_tokens", settings.max_tokens, "at least 1: an answer of no token is none")
    sampling = sampling_of(settings, seed=answer.seed, num_logprobs=answer.logprobs or 0)
    return Ask(
        prompt=prompt,
        system=settings.system,
        max_tokens=settings.max_tokens,
        sampling=sampling,
        stop=tuple(answer.stop or ()),
        num_answers=answer.n,
        raw=answer.raw,
        schema=schema,
    )


def _make_form(answer: AnswerFlags, output: OutputFlags, stderr: Stderr, settings: Settings) -> Form:
    """Return the form that the flags ask for."""
    from pie_mlx.cli.answering import JsonForm, TextForm
    from pie_mlx.cli.render import Stdout

    stdout = Stdout(settings.color)
    shows_reasoning = not answer.hide_reasoning
    if output.json or answer.jsonl:
        return JsonForm(stdout, pieces=answer.jsonl, shows_reasoning=shows_reasoning)
    return TextForm(stdout, stderr, num_answers=answer.n, shows_reasoning=shows_reasoning)
