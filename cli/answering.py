"""Ask an engine once and give its answer out as text, JSON or JSON lines, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pie_mlx.errors import Cancelled, Fact, PieError
from pie_mlx.models.reasoning import ReasoningSplitter, SplitText
from pie_mlx.sampling import Sampling, derive_seed

if TYPE_CHECKING:
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.render import Stdout
    from pie_mlx.engine import Completion, Context, Engine, Piece, Request
    from pie_mlx.models.constrained import Constraint
    from pie_mlx.models.tokenizer import Message, Tokenizer

SCHEMA = "pie-mlx.run/1"
PIECE_SCHEMA = "pie-mlx.run-piece/1"


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of the model."""

    prompt: str
    system: str | None
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    num_answers: int = 1
    raw: bool = False
    schema: Mapping[str, Any] | None = None
    """A JSON Schema that each answer is held to."""

    def seed(self, index: int) -> int:
        """Return the seed of an answer: the first has the run's own, so it equals a run of one."""
        return self.sampling.seed if index == 0 else derive_seed(self.sampling.seed, index)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt as tokens."""

    tokens: tuple[int, ...]
    starts_in_thinking: bool = False
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer."""

    index: int
    text: str
    reasoning: str
    finish_reason: str
    seed: int
    completion: Completion
    ended_in_thinking: bool


def is_cut(answer: Answer) -> bool:
    """Whether a limit ended an answer before the model did."""
    return answer.finish_reason in ("length", "context_full")


class Form(Protocol):
    """How answers are given out."""

    def begin(self, index: int) -> None:
        """An answer begins."""

    def piece(self, index: int, split: SplitText, piece: Piece | None) -> None:
        """A piece has come; without one, what was held back until the end."""

    def end(self, answer: Answer) -> None:
        """An answer has ended."""

    def break_off(self) -> None:
        """The answer that was being given out has failed: what is said next stands on a line of its own."""

    def finish(self, summary: dict[str, Fact]) -> None:
        """All have ended."""


class Answerer:
    """Runs one ask on an engine."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, ask: Ask) -> None:
        """Keep what is asked, and of whom."""
        self._engine = engine
        self._tokenizer = tokenizer
        self._ask = ask

    def prompt(self) -> Prompt:
        """Return the prompt's tokens, through the chat template unless raw.

        Raises:
            TemplateError: the model has no template, or it refuses the messages.
        """
        ask = self._ask
        if ask.raw:
            return Prompt(tuple(self._tokenizer.prompt_ids(ask.prompt)))
        messages: list[Message] = [{"role": "user", "content": ask.prompt}]
        if ask.system:
            messages.insert(0, {"role": "system", "content": ask.system})
        # What is held to a schema cannot reason first.
        chat = self._tokenizer.chat(messages, thinking=None if ask.schema is None else False)
        return Prompt(chat.ids, chat.starts_in_thinking, chat.notices)

    def run(self, prompt: Prompt, form: Form) -> int:
        """Give every answer out through ``form``; return the exit code.

        It is 130 after Ctrl-C, and 1 where an answer that a schema holds was cut before its JSON was complete.

        Raises:
            PieError: a request failed; what came before it has been given out.
        """
        with ExitStack() as opened:
            constraint = self._constraint()
            root = opened.enter_context(self._engine.context(prompt.tokens, name="prompt"))
            cached = self._prefill(root) if self._ask.num_answers > 1 else None
            contexts = [root] if cached is None else self._fork(root, opened)
            requests = [self._submit(context, index, constraint) for index, context in enumerate(contexts)]
            with _cancelling(requests):
                answers = [self._follow(request, index, prompt, form) for index, request in enumerate(requests)]
            form.finish(self._summary(answers, prompt, cached))
        if any(answer.finish_reason == "cancelled" for answer in answers):
            return Cancelled.exit_code
        return PieError.exit_code if constraint is not None and any(map(is_cut, answers)) else 0

    def _constraint(self) -> Constraint | None:
        """Return what each answer is held to.

        Raises:
            SchemaError: it uses what cannot be held.
            ConstraintUnavailable: the model has no token that ends an answer.
        """
        if self._ask.schema is None:
            return None
        from pie_mlx.models.constrained import Grammars

        return Grammars(self._tokenizer).of_schema(self._ask.schema)

    def _prefill(self, root: Context) -> int:
        """Compute the prompt once, before it is forked; return how much of it was there already."""
        request = root.prefill()
        with _cancelling([request]):
            return request.result().cached_tokens

    def _fork(self, root: Context, opened: ExitStack) -> list[Context]:
        """Fork the prompt once for each answer."""
        names = (f"answer {index + 1}" for index in range(self._ask.num_answers))
        return [opened.enter_context(root.fork(name=name)) for name in names]

    def _submit(self, context: Context, index: int, constraint: Constraint | None) -> Request:
        """Ask for one answer; each goes its own way through a constraint."""
        return context.submit(
            max_tokens=self._ask.max_tokens,
            sampling=replace(self._ask.sampling, seed=self._ask.seed(index)),
            stop=self._ask.stop,
            constraint=None if constraint is None else constraint.copy(),
        )

    def _follow(self, request: Request, index: int, prompt: Prompt, form: Form) -> Answer:
        """Give out one answer as it comes; Ctrl-C ends it and keeps what there is."""
        splitter = ReasoningSplitter(self._tokenizer.markers, thinking=prompt.starts_in_thinking)
        parts: list[SplitText] = []

        def give(split: SplitText, piece: Piece | None) -> None:
            parts.append(split)
            form.piece(index, split, piece)

        form.begin(index)
        interrupted = False
        try:
            for piece in request:
                give(splitter.push(piece.text), piece)
        except (KeyboardInterrupt, Cancelled):
            request.cancel()
            interrupted = True
        except PieError:
            form.break_off()
            raise
        give(splitter.finish(), None)
        completion = request.partial
        answer = Answer(
            index=index,
            text="".join(part.answer for part in parts),
            reasoning="".join(part.reasoning for part in parts),
            finish_reason="cancelled" if interrupted else completion.finish_reason,
            seed=self._ask.seed(index),
            completion=completion,
            ended_in_thinking=splitter.thinking,
        )
        form.end(answer)
        return answer

    def _summary(self, answers: Sequence[Answer], prompt: Prompt, cached: int | None) -> dict[str, Fact]:
        """Return the final JSON object: the first answer's fields, and every answer's where there are several."""
        first = answers[0].completion
        pages = self._engine.readings().pages
        out: dict[str, Fact] = {
            "schema": SCHEMA,
            **self._answer_facts(answers[0]),
            "model": self._engine.facts.model,
            "prompt_tokens": len(prompt.tokens),
            "cached_tokens": first.cached_tokens if cached is None else cached,
            "completion_tokens": sum(answer.completion.completion_tokens for answer in answers),
            "ttft_s": first.ttft_s,
            "decode_tps": first.decode_tps,
            "pages": {"total": pages.total, "free": pages.free, "held": pages.held, "shared": pages.shared},
        }
        if len(answers) > 1:
            out["choices"] = [
                {
                    "index": answer.index,
                    **self._answer_facts(answer),
                    "completion_tokens": answer.completion.completion_tokens,
                }
                for answer in answers
            ]
        return out

    def _answer_facts(self, answer: Answer) -> dict[str, Fact]:
        """Return what JSON says of one answer."""
        out: dict[str, Fact] = {
            "text": answer.text,
            "reasoning": answer.reasoning,
            "finish_reason": answer.finish_reason,
            "seed": answer.seed,
        }
        if self._ask.sampling.num_logprobs:
            completion = answer.completion
            out["logprobs"] = self._logprob_facts(completion)
        return out

    def _logprob_facts(self, completion: Completion) -> list[Fact]:
        """Return each token with its log-probability and the likeliest instead of it."""
        text = self._tokenizer.token_text
        return [
            {
                "token": token,
                "text": text(token),
                "logprob": logprob,
                "top": [{"token": other, "text": text(other), "logprob": value} for other, value in top],
            }
            for token, logprob, top in zip(completion.tokens, completion.logprobs, completion.top_logprobs, strict=True)
        ]


@contextmanager
def _cancelling(requests: Sequence[Request]) -> Iterator[None]:
    """Cancel what still runs when an error or Ctrl-C leaves the block."""
    try:
        yield
    except BaseException:
        for request in requests:
            request.cancel()
        raise


class TextForm:
    """The answer on stdout, the reasoning on stderr, then a line of figures where a person looks on."""

    def __init__(self, stdout: Stdout, stderr: Stderr, *, num_answers: int, shows_reasoning: bool) -> None:
        """Write to both streams."""
        self._stdout = stdout
        self._stderr = stderr
        self._num_answers = num_answers
        self._shows_reasoning = shows_reasoning
        self._reasoning_open = False
        self._line_open = False

    def begin(self, index: int) -> None:
        """Head each of several answers with its number."""
        self._line_open = False
        if self._num_answers > 1:
            self._stdout.line(f"{'' if index == 0 else chr(10)}[{index + 1}/{self._num_answers}]")

    def piece(self, index: int, split: SplitText, piece: Piece | None) -> None:
        """Write what has come."""
        if split.reasoning and self._shows_reasoning:
            self._stderr.piece(split.reasoning, style="dim")
            self._reasoning_open = True
        if split.answer:
            self._end_reasoning()
            self._stdout.text(split.answer)
            self._line_open = not split.answer.endswith("\n")

    def _end_reasoning(self) -> None:
        if self._reasoning_open:
            self._stderr.line("\n")
            self._reasoning_open = False

    def break_off(self) -> None:
        """End the line."""
        self._end_reasoning()
        if self._line_open:
            self._stdout.line()

    def end(self, answer: Answer) -> None:
        """End the line, and say what the text alone does not."""
        self._end_reasoning()
        if self._line_open:
            self._stdout.line()
        if answer.finish_reason == "cancelled":
            self._stderr.note(f"interrupted after {answer.completion.completion_tokens} tokens")
        elif answer.ended_in_thinking and not answer.text:
            spent = answer.completion.completion_tokens
            self._stderr.note(f"no answer: all {spent} tokens went into reasoning; raise --max-tokens")
        elif answer.finish_reason == "context_full":
            self._stderr.note("the model's context is full: the answer ends here")
        elif answer.finish_reason == "length" and self._stderr.is_terminal:
            self._stderr.note(f"cut after {answer.completion.completion_tokens} tokens (--max-tokens)")

    def finish(self, summary: dict[str, Fact]) -> None:
        """Show the figures to a person."""
        if self._stderr.is_terminal:
            self._stderr.line(footer(summary), style="dim")


class JsonForm:
    """One object at the end; with ``pieces`` one for each piece before it."""

    def __init__(self, stdout: Stdout, *, pieces: bool, shows_reasoning: bool) -> None:
        """Write to stdout."""
        self._stdout = stdout
        self._pieces = pieces
        self._shows_reasoning = shows_reasoning

    def begin(self, index: int) -> None:
        """Say nothing."""

    def piece(self, index: int, split: SplitText, piece: Piece | None) -> None:
        """Write a piece that has text."""
        reasoning = split.reasoning if self._shows_reasoning else ""
        if not self._pieces or not (split.answer or reasoning):
            return
        facts = {"schema": PIECE_SCHEMA, "index": index, "text": split.answer, "reasoning": reasoning}
        self._stdout.json({**facts, "tokens": list(piece.tokens) if piece else []}, compact=True)

    def break_off(self) -> None:
        """Leave it at whole lines."""

    def end(self, answer: Answer) -> None:
        """Say nothing."""

    def finish(self, summary: dict[str, Fact]) -> None:
        """Write the object; hidden reasoning is empty."""
        self._stdout.json(summary if self._shows_reasoning else _without_reasoning(summary), compact=self._pieces)


def _without_reasoning(summary: dict[str, Fact]) -> dict[str, Fact]:
    """Return the object with every reasoning emptied."""
    out = {**summary, "reasoning": ""}
    choices = summary.get("choices")
    if isinstance(choices, list):
        out["choices"] = [{**choice, "reasoning": ""} for choice in choices if isinstance(choice, dict)]
    return out


def footer(summary: dict[str, Fact]) -> str:
    """Return the line of figures under an answer."""
    pages = summary["pages"]
    assert isinstance(pages, dict), "a summary counts pages"
    ttft, speed = summary["ttft_s"], summary["decode_tps"]
    figures = [
        str(summary["model"]),
        f"{summary['prompt_tokens']} + {summary['completion_tokens']} tokens",
        f"{speed:.0f} tok/s" if isinstance(speed, float) else "",
        f"TTFT {ttft * 1000:.0f} ms" if isinstance(ttft, float) else "",
        f"pages {pages['held']}/{pages['total']} (shared {pages['shared']})",
    ]
    return " · ".join(figure for figure in figures if figure)
