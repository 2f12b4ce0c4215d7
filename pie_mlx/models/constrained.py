"""Answers held to a grammar: the tokens that may come next, from llguidance where it is installed."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pie_mlx.errors import UsageError
from pie_mlx.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

INSTALL = "pip install 'pie-mlx[schema]'"
"""What brings llguidance."""
# Without a fixed form, a small model may fill its whole budget with white space.
_FORM: dict[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_LONGEST_SCHEMA = 256 << 10
_LONGEST_REASON = 300


class SchemaError(UsageError):
    """A schema is none, or uses what an answer cannot be held to."""

    code: ClassVar[str] = "schema"


class ConstraintUnavailable(UsageError):  # noqa: N818  (named by what happened, as all errors are)
    """Nothing can be held to a grammar here: a package or the model lacks something."""

    code: ClassVar[str] = "constraint_unavailable"


class Grammars:
    """Makes constraints over one tokenizer; the tokenizer's trie is built once, when first asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Keep the tokenizer."""
        self._tokenizer = tokenizer
        self._trie: LLTokenizer | None = None
        self._lock = threading.Lock()

    def of_schema(self, schema: Mapping[str, Any]) -> Constraint:
        """Return a constraint to JSON that a schema allows.

        Raises:
            SchemaError: the schema is not one, or uses what cannot be held.
            ConstraintUnavailable: llguidance is not installed, or the model has no token that ends an answer.
        """
        grammar = json_grammar(schema)
        return self._constraint(self._tokens(), grammar)

    def of_tool_call(self, functions: Sequence[tuple[str, Mapping[str, Any] | None]]) -> Constraint:
        """Return a constraint to one call of one of ``functions`` (name, schema of the arguments).

        Errors as for :meth:`of_schema`.
        """
        trie = self._tokens()
        from llguidance import LLMatcher

        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": parameters or {"type": "object"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for name, parameters in functions
        ]
        schema = {"x-guidance": _FORM, "anyOf": calls}
        rule = f'start: "<tool_call>\\n" call "\\n</tool_call>"\ncall: %json {json.dumps(schema)}\n'
        return self._constraint(trie, LLMatcher.grammar_from_lark(rule))

    def _constraint(self, trie: LLTokenizer, grammar: str) -> Constraint:
        """Compile a grammar."""
        from llguidance import LLMatcher

        matcher = LLMatcher(trie, grammar, log_level=0)
        if matcher.is_error():
            raise _unusable(matcher.get_error())
        return Constraint(matcher, self._tokenizer.eos_ids)

    def _tokens(self) -> LLTokenizer:
        """Return the tokenizer in llguidance's form."""
        with self._lock:
            if self._trie is None:
                self._trie = _build(self._tokenizer)
            return self._trie


class Constraint:
    """One answer's way through a grammar; the engine asks it before and tells it after every token."""

    def __init__(self, matcher: LLMatcher, end_ids: frozenset[int]) -> None:
        """Start at the beginning of ``matcher``'s grammar."""
        self._matcher = matcher
        self._end_ids = sorted(end_ids)

    def copy(self) -> Constraint:
        """Return another one in the same place, for another answer."""
        return Constraint(self._matcher.deep_copy(), frozenset(self._end_ids))

    def allowed(self) -> Sequence[int]:
        """Return the ids that may come next; behind a complete text only the end.

        Raises:
            SchemaError: the grammar became too hard to follow.
        """
        if self._matcher.is_stopped():
            self._check()
            return self._end_ids
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        self._check()
        ids: list[int] = np.flatnonzero(bits).tolist()
        return ids or self._end_ids

    def accept(self, token: int) -> None:
        """Take note of the token that was drawn."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        """Raise what the grammar cannot follow."""
        if self._matcher.is_error():
            raise SchemaError(f"the schema cannot be followed: {self._matcher.get_error()}"[:_LONGEST_REASON])


def json_grammar(schema: Mapping[str, Any]) -> str:
    """Return the grammar of the JSON that a schema allows; needs no tokenizer, so it can be asked before a model loads.

    Raises:
        SchemaError: the schema is not one, or uses what cannot be held.
        ConstraintUnavailable: llguidance is not installed.
    """
    matcher = _llguidance().LLMatcher
    text = json.dumps(schema)
    if len(text) > _LONGEST_SCHEMA:
        raise SchemaError(f"the schema is longer than {_LONGEST_SCHEMA} bytes")
    try:
        grammar: str = matcher.grammar_from_json_schema(text, defaults=_FORM)
    except ValueError as error:
        raise _unusable(str(error)) from error
    wrong = matcher.validate_grammar(grammar)
    if wrong:
        raise _unusable(wrong)
    return grammar


def _unusable(reason: str) -> SchemaError:
    """Return the error for a schema that cannot be held."""
    return SchemaError(f"the schema cannot be used: {reason}"[:_LONGEST_REASON])


class _Tokens:
    """A tokenizer as llguidance asks for one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        # A token without text is a control token: it never stands inside a grammar's text.
        self.special_token_ids = [token for token, text in enumerate(self.tokens) if not text]

    def __call__(self, text: bytes | str) -> list[int]:
        """Encode text."""
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


def _llguidance() -> Any:
    """Return the package.

    Raises:
        ConstraintUnavailable: it is not installed.
    """
    try:
        import llguidance
    except ImportError as error:
        raise ConstraintUnavailable(
            "this needs the package llguidance, which is not installed here", INSTALL
        ) from error
    return llguidance


def _build(tokenizer: Tokenizer) -> LLTokenizer:
    """Build the trie of a tokenizer's tokens."""
    package = _llguidance()
    if not tokenizer.eos_ids:
        raise ConstraintUnavailable("this model has no token that ends an answer", "choose another model with --model")
    trie: LLTokenizer = package.LLTokenizer(
        package.TokenizerWrapper(_Tokens(tokenizer)), eos_token=sorted(tokenizer.eos_ids)
    )
    return trie
