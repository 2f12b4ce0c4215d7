"""A chat session: a conversation on an engine, its settings, and its replies. What every front end drives."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from pie_mlx.chat.attachments import Attachment
from pie_mlx.chat.conversation import Conversation
from pie_mlx.chat.errors import ReplyRunning
from pie_mlx.chat.prompt import PromptMaker, Room, TurnEnds, turn_ends
from pie_mlx.chat.reply import SAME_REPLY, Reply, ending_notices
from pie_mlx.chat.saving import restore_branch, save_branch
from pie_mlx.chat.settings import ChatSettings
from pie_mlx.chat.store import SessionFacts, SessionStore
from pie_mlx.chat.turns import Turn, TurnState
from pie_mlx.engine.completion import Completion
from pie_mlx.engine.engine import Engine
from pie_mlx.engine.request import Request
from pie_mlx.errors import PieError, TokenizerMissing, UsageError
from pie_mlx.kv.snapshot import SnapshotFacts, SnapshotStore
from pie_mlx.models.chat import ChatTemplate
from pie_mlx.models.reasoning import ReasoningSplitter
from pie_mlx.models.tokenizer import Tokenizer

OpenModel = Callable[[str], Engine]
"""Opens an engine on another model, or raises its typed error."""

_FLUSH_S = 0.3


class ChatSession:
    """One conversation that a person has with a model. One reply runs at a time."""

    def __init__(
        self,
        engine: Engine,
        store: SessionStore,
        facts: SessionFacts,
        *,
        open_model: OpenModel | None = None,
        snapshots: SnapshotStore | None = None,
    ) -> None:
        """Continue the saved session ``facts`` on ``engine``; use :meth:`new` or :meth:`resume`.

        Raises:
            TemplateError: the model has no chat template.
            TokenizerMissing: the engine has no tokenizer.
            SessionNotFound, SessionCorrupt: as their names say.
        """
        self.store = store
        self.facts = facts
        self.snapshots = snapshots
        self.settings = facts.settings
        self.system = facts.system
        self.attachments: list[Attachment] = []  # files that go with the next message
        self._open_model = open_model
        self._reply: Reply | None = None
        self._saved_s = 0.0
        self._is_save_broken = False
        self.last: Completion | None = None  # the figures of the last reply
        self._notices: list[str] = []
        self._take_engine(engine)
        self._enter(facts)

    @classmethod
    def new(
        cls,
        engine: Engine,
        store: SessionStore,
        *,
        name: str | None = None,
        system: str | None = None,
        settings: ChatSettings | None = None,
        open_model: OpenModel | None = None,
        snapshots: SnapshotStore | None = None,
    ) -> ChatSession:
        """Begin a conversation.

        Raises:
            SessionExists: the name is taken.
            TemplateError: the model has no chat template.
        """
        facts = store.create(model=engine.facts.model, system=system, settings=settings, name=name)
        return cls(engine, store, facts, open_model=open_model, snapshots=snapshots)

    @classmethod
    def resume(
        cls,
        engine: Engine,
        store: SessionStore,
        name: str,
        *,
        open_model: OpenModel | None = None,
        snapshots: SnapshotStore | None = None,
    ) -> ChatSession:
        """Continue the saved session ``name``, with another model if need be.

        Raises:
            SessionNotFound: there is none; offers the nearest name.
        """
        return cls(engine, store, store.find(name), open_model=open_model, snapshots=snapshots)

    def _take_engine(self, engine: Engine) -> None:
        """Speak with the model of ``engine`` from now on."""
        tokenizer = engine.codec
        if not isinstance(tokenizer, Tokenizer):
            raise TokenizerMissing(engine.facts.model, "the engine was started without a tokenizer")
        if not tokenizer.has_chat_template:
            raise ChatTemplate.missing(engine.facts.model)
        pages = engine.readings().pages.total
        pool_tokens, model_tokens = pages * engine.settings.page_size, engine.facts.context_tokens
        if pool_tokens < model_tokens:
            room = Room(pool_tokens, f"the pool has {pages:,} pages; the model's context is {model_tokens:,}")
        else:
            room = Room(model_tokens, "the model's context")
        self.tokenizer = tokenizer
        self.engine = engine
        self._maker = PromptMaker(tokenizer, room)
        self._ends: TurnEnds = turn_ends(tokenizer)

    def _enter(self, facts: SessionFacts) -> None:
        """Load the conversation of ``facts``."""
        self.facts = facts
        self.settings, self.system = facts.settings, facts.system
        self.conversation = Conversation(self.engine, self.store, facts.id)
        self.last = None
        if facts.num_turns and facts.model != self.model:
            self._notices.append(
                f"this session was held with {facts.model}; {self.model} reads it anew with the next message"
            )
        elif facts.num_turns and self.snapshots is not None:
            self._notices += restore_branch(self.conversation, self.snapshots)
        if (path := self.conversation.tree.current_path()) and path[-1].is_partial:
            self._notices.append("the last reply is not complete: /retry generates it again")

    def __enter__(self) -> Self:
        """Return the session itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End a running reply, give the pages back, forget a session without turns; engine and store stay open."""
        if self._reply is not None:
            self._reply.close()
        self.conversation.close()
        self.store.drop_if_empty(self.facts.id)

    # --- looking ---------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """The model's name."""
        return self.engine.facts.model

    @property
    def branch(self) -> str:
        """The current branch."""
        return self.conversation.tree.current

    @property
    def limit_tokens(self) -> int:
        """Tokens that a sequence may have: the model's context, or a smaller pool."""
        return self._maker.room.limit_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens of the current branch's context; 0 before its first reply here."""
        context = self.conversation.open_context(self.branch)
        return 0 if context is None else context.num_tokens

    @property
    def reply(self) -> Reply | None:
        """The reply that is being generated."""
        return None if self._reply is None or self._reply.is_over else self._reply

    def path(self) -> list[Turn]:
        """Return the current branch's turns."""
        return self.conversation.tree.current_path()

    def take_notices(self) -> list[str]:
        """Return what the user should know and has not been told yet."""
        told = [*self._notices, *self.conversation.notices]
        self._notices.clear()
        self.conversation.notices.clear()
        return told

    # --- talking ---------------------------------------------------------------------------

    def send(self, text: str) -> Reply:
        """Say ``text``, with the files that are attached; return the reply as it comes.

        Raises:
            UsageError: the message is empty, or a reply runs.
            ConversationTooLong, TemplateError, PressureError …: nothing was said, the conversation is as it was.
        """
        self.check_idle()
        whole = "\n\n".join(part for part in (text.strip("\n"), *(item.as_text() for item in self.attachments)) if part)
        tree = self.conversation.tree
        reply = self._generate(self.conversation.message(whole, tree.tip))
        self.attachments.clear()
        return reply

    def retry(self) -> Reply:
        """Generate the last reply again; the old one stays on a branch of its own. Errors as for :meth:`send`."""
        self.check_idle()
        message, old = self.conversation.tree.last_exchange()
        reply = self._generate(message)
        if not old.is_partial and self.settings.sampling(0).is_greedy:
            self._notices.append(SAME_REPLY)
        return reply

    def edit(self, text: str) -> Reply:
        """Say the last message in another way; the old one stays on a branch of its own. Errors as for :meth:`send`."""
        self.check_idle()
        message, _ = self.conversation.tree.last_exchange()
        return self._generate(self.conversation.message(text, message.parent))

    def undo(self) -> tuple[Turn, str | None]:
        """Take the last exchange off the branch; return its message, and the branch that keeps it.

        Raises:
            UsageError: there is nothing to undo, or a reply runs.
        """
        self.check_idle()
        return self.conversation.undo()

    def _generate(self, message: Turn) -> Reply:
        """Render the path to ``message``, submit it, and only then write it down."""
        conversation = self.conversation
        before = [] if message.parent is None else conversation.tree.path(message.parent)
        first = conversation.first_sent.get(self.branch)
        prompt = self._maker.make([*before, message], system=self.system, settings=self.settings, first=first)
        spare = conversation.spare_for(message.id or message.parent)
        request = None
        try:
            request = self._submit(prompt.ids)
            message, turn, kept = conversation.add_exchange(message, self.model, spare)
        except PieError:
            if request is not None:
                request.cancel()
            if spare is not None:
                conversation.adopt(self.branch, spare)
            raise
        conversation.first_sent[self.branch] = prompt.first or message.id
        if self.facts.model != self.model:
            self._write_facts()
        self._notices += prompt.notices
        if kept is not None:
            self._notices.append(f"the earlier turns are kept as branch {kept!r} (/switch {kept})")
        splitter = ReasoningSplitter(self.tokenizer.markers, thinking=prompt.starts_in_thinking)
        self._saved_s, self._is_save_broken = time.monotonic(), False
        self._reply = Reply(request, turn, splitter, decode=self.tokenizer.decode, on_change=self._note)
        return self._reply

    def _submit(self, ids: Sequence[int]) -> Request:
        """Ask for a reply to the prompt ``ids`` on the current branch's context."""
        return self.conversation.context_for(ids).submit(
            max_tokens=self.settings.max_tokens,
            sampling=self.settings.sampling(secrets.randbits(32)),
            stop=self._ends.texts,
            stop_ids=self._ends.ids | self.engine.facts.eos_ids,
        )

    def _note(self, reply: Reply) -> None:
        """Write down what a reply has become: at its end, and now and then before."""
        now = time.monotonic()
        if not reply.is_over and now - self._saved_s < _FLUSH_S:
            return
        self._saved_s = now
        text = reply.text
        state = TurnState.STREAMING
        if text.finish_reason is not None:
            whole = text.finish_reason in ("stop", "length", "context_full")
            state = TurnState.COMPLETE if whole else TurnState.PARTIAL
        turn = replace(
            reply.turn, text=text.answer, reasoning=text.reasoning, state=state, finish_reason=text.finish_reason or ""
        )
        self.conversation.tree.put(turn)
        if reply.is_over:
            self.last = reply.completion
            self._notices += ending_notices(turn, self.settings)
            self.store.update_turn(turn)
        elif not self._is_save_broken:
            self._save_on_the_way(turn)

    def _save_on_the_way(self, turn: Turn) -> None:
        """Write a reply so far; a failure is told once, and is raised if the whole reply cannot be written either."""
        try:
            self.store.update_turn(turn)
        except PieError as error:
            self._is_save_broken = True
            self._notices.append(f"the reply cannot be saved at the moment: {error.message}")

    def check_idle(self) -> None:
        """Refuse to move while a reply runs.

        Raises:
            ReplyRunning: one does.
        """
        if self.reply is not None:
            raise ReplyRunning

    # --- settings, model, sessions ---------------------------------------------------------

    def change(self, *, settings: ChatSettings | None = None, system: str | None = None) -> None:
        """Change settings, or the system text (empty takes it away), from the next reply on."""
        self.check_idle()
        if settings is not None:
            self.settings = settings
        if system is not None:
            self.system = system.strip() or None
        self._write_facts()

    def _write_facts(self) -> None:
        """Note in the store what the session runs with."""
        self.store.change(self.facts.id, model=self.model, system=self.system, settings=self.settings)
        self.facts = self.store.facts(self.facts.id)

    def change_model(self, name: str) -> None:
        """Go on with another model; the old one is closed once the new one is open.

        Raises:
            UsageError: this front end cannot open models.
            ModelError: the model cannot be opened, and the old one goes on.
        """
        self.check_idle()
        if self._open_model is None:
            raise UsageError("the model cannot be changed here", "start a new chat with --model")
        old, engine = self.engine, self._open_model(name)
        try:
            self._take_engine(engine)
        except PieError:
            engine.close()
            raise
        self.conversation.close()
        self.conversation.engine = engine
        old.close()
        self._write_facts()
        if self.path():
            self._notices.append(f"{self.model} reads the conversation anew with the next message")

    def begin_new(self, name: str | None = None) -> None:
        """Begin a new conversation with the same model, system text and settings.

        Raises:
            SessionExists: the name is taken; the old conversation goes on.
        """
        self.check_idle()
        facts = self.store.create(model=self.model, system=self.system, settings=self.settings, name=name)
        self._leave_for(facts)

    def load(self, name: str) -> None:
        """Continue another saved session.

        Raises:
            SessionNotFound: there is none; this conversation goes on.
        """
        self.check_idle()
        facts = self.store.find(name)
        if facts.id != self.facts.id:
            self._leave_for(facts)

    def _leave_for(self, facts: SessionFacts) -> None:
        """Close this conversation and enter another."""
        self.conversation.close()
        self.store.drop_if_empty(self.facts.id)
        self.attachments.clear()
        self._enter(facts)

    def rename(self, name: str) -> None:
        """Give the session a name.

        Raises:
            SessionExists, InvalidParameter: as their names say.
        """
        self.store.rename(self.facts.id, name)
        self.facts = self.store.facts(self.facts.id)

    def save(self) -> SnapshotFacts | None:
        """Save the current branch's K/V, so that resuming needs no prefill; None: there is nothing computed yet.

        Raises:
            SnapshotError: it could not be written.
            UsageError: this front end keeps no snapshots.
        """
        self.check_idle()
        if self.snapshots is None:
            raise UsageError("this chat keeps no snapshots")
        return save_branch(self.conversation, self.snapshots)
