"""The chat suite: time to the first token of turn 5, with the turns before it resident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pie_mlx.bench import baseline, ours
from pie_mlx.bench.baseline import Cache
from pie_mlx.bench.cases import Case
from pie_mlx.bench.report import Row, Trials
from pie_mlx.bench.setting import BenchSetting
from pie_mlx.bench.texts import prompt_of
from pie_mlx.errors import Fact


@dataclass(frozen=True, slots=True)
class ChatShape:
    """A conversation of equal turns."""

    turns: int
    question_tokens: int
    reply_tokens: int

    @property
    def history_tokens(self) -> int:
        """Tokens before the last turn's question."""
        return (self.turns - 1) * (self.question_tokens + self.reply_tokens)


FULL = ChatShape(turns=5, question_tokens=120, reply_tokens=100)
QUICK = ChatShape(turns=2, question_tokens=24, reply_tokens=24)


def cases(*, quick: bool) -> list[Case]:
    """Return the suite's cases."""
    shape = QUICK if quick else FULL
    return [Case("chat", f"turn {shape.turns} of a conversation", partial(_measure, shape=shape))]


def _measure(setting: BenchSetting, shape: ChatShape) -> list[Row]:
    """Measure the first token of the last turn: against computing everything anew, and against a kept prompt cache."""
    whole = prompt_of(setting.encoder, shape.history_tokens + shape.question_tokens)
    history, question = whole[: shape.history_tokens], whole[shape.history_tokens :]
    engine = setting.engine
    with engine.context([*history, question[0]]) as context:
        context.prefill().result()
        context.truncate(len(history))
        with engine.context() as empty:
            fresh = setting.measure(
                lambda: ours.first_token_s(context, question) * 1e3, lambda: _fresh_ms(setting, whole)
            )
            cold = setting.measure(
                lambda: ours.first_token_s(context, question) * 1e3,
                lambda: ours.first_token_s(empty, whole) * 1e3,
                is_mlx_lm=False,
            )
        rows = [_row(shape, "re-prefilling, mlx-lm", fresh, setting)]
        rows.append(_row(shape, "re-prefilling, ours", cold, setting))
        if setting.options.has_baseline:
            cache: Cache = engine.run_errand(lambda: baseline.prefill(setting.module, history)[0])
            kept = setting.measure(
                lambda: ours.first_token_s(context, question) * 1e3, lambda: _kept_ms(setting, cache, question)
            )
            rows.append(_row(shape, "kept prompt cache, mlx-lm", kept, setting))
    return rows if setting.options.has_baseline else rows[1:]


def _fresh_ms(setting: BenchSetting, prompt: Sequence[int]) -> float:
    """Return mlx-lm's milliseconds where nothing was kept."""
    return setting.engine.run_errand(lambda: baseline.first_token_s(setting.module, None, prompt)) * 1e3


def _kept_ms(setting: BenchSetting, cache: Cache, question: Sequence[int]) -> float:
    """Return mlx-lm's milliseconds where the history's cache was kept."""
    return setting.engine.run_errand(lambda: baseline.first_token_s(setting.module, cache, question)) * 1e3


def _row(shape: ChatShape, by: str, taken: tuple[Trials, Trials | None], setting: BenchSetting) -> Row:
    """Return a row of milliseconds."""
    facts: dict[str, Fact] = {
        "history_tokens": shape.history_tokens,
        "prompt_tokens": shape.question_tokens,
        **setting.attention(),
    }
    name = f"first token of turn {shape.turns}, against {by}"
    return Row("chat", name, "ms", *taken, by, higher_is_better=False, facts=facts)
