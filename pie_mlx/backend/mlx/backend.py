"""The MLX backend: a loaded model, its arena, and :meth:`MlxBackend.step`."""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx import nn

from pie_mlx import config
from pie_mlx.backend.base import BackendFacts, Foresee, IntArray, Outcome, Segment
from pie_mlx.backend.mlx.arena import Arena
from pie_mlx.backend.mlx.cache import Form
from pie_mlx.backend.mlx.calls import Kind
from pie_mlx.backend.mlx.device import cost_model, device_name, limit_cache
from pie_mlx.backend.mlx.forward import Forward
from pie_mlx.backend.mlx.layout import read_layout
from pie_mlx.backend.mlx.parity import choose_form
from pie_mlx.backend.mlx.passes import Pass, ids_can_be_written
from pie_mlx.backend.mlx.planner import Grouping, PlanSettings, StepPlan
from pie_mlx.backend.mlx.probe import probe_shape
from pie_mlx.backend.mlx.verdicts import Verdict, Verdicts
from pie_mlx.errors import DeviceFailed

if TYPE_CHECKING:
    from pie_mlx.models.tokenizer import Tokenizer

_DEVICE_FAULTS = (RuntimeError, ValueError, TypeError, IndexError, MemoryError)


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """How to load and run a model; the defaults fit the device."""

    dequantize: bool | None = None
    """Turn all weights into float32; None: on the CPU, where anything else is slow or wrong."""
    dtype: str | None = None
    """Cast the weights; None keeps the model's own."""
    adapter: Path | None = None
    """A folder with a LoRA or DoRA adapter that mlx-lm trained for this model."""
    grouping: Grouping | None = None
    """Force how rows attend together; None lets the planner choose."""
    kind: Kind | None = None
    """Force views or gathers; None lets the planner choose."""
    builds_ahead: bool | None = None
    """Build the next pass while one runs; None: on a GPU where the input of a built graph can be written."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What the files say of a model."""

    model: str
    fingerprint: str
    context_tokens: int
    eos_ids: frozenset[int]


class MlxBackend:
    """A loaded model on MLX's device; use it from the thread that made it."""

    def __init__(
        self,
        module: nn.Module,
        identity: ModelIdentity,
        options: BackendOptions | None = None,
        verdicts: Verdicts | None = None,
    ) -> None:
        """Probe shapes, check parity with mlx-lm unless ``verdicts`` knows the model, and settle how it runs.

        Raises:
            UnsupportedModel: a layer keeps something else than K/V, or the logits are not those of mlx-lm.
        """
        options = options or BackendOptions()
        device = device_name()
        layout = read_layout(module, identity.model)
        shape = probe_shape(module, layout, identity.model)
        self._shapes = shape.layers
        self._forward = Forward(module, layout, folded=device == "cpu")
        heads = getattr(getattr(module, "args", None), "num_attention_heads", None)
        costs = cost_model(self._shapes, heads)
        self._settings = PlanSettings(
            costs, options.grouping, options.kind, cascades=self._forward.folded, window=layout.window
        )
        verdict = None if verdicts is None else verdicts.find(identity.fingerprint, device)
        untold = None
        if verdict is None:
            verdict = Verdict(*choose_form(self._forward, shape, self._settings, identity.model))
            untold = None if verdicts is None else verdicts.keep(identity.fingerprint, device, verdict)
        form = self._forward.form = verdict.form
        if form in (Form.ARRAYS, Form.ARRAYS_BY_GROUP):
            self._settings = replace(self._settings, grouping=Grouping.ONE, cascades=False)
        self.notices = tuple(notice for notice in (verdict.notice, untold) if notice is not None)
        self._arena: Arena | None = None
        self._num_steps = 0
        # On the CPU the cores that compute would build as well: a single stream was slower by a twentieth.
        wanted = device != "cpu" and ids_can_be_written() if options.builds_ahead is None else options.builds_ahead
        self._builds_ahead = wanted and layout.num_states == 0
        self._ahead: Pass | None = None
        """Built for the step that was foreseen; it holds the arena's arrays, so nothing may write to them beside it."""
        self.num_ahead = 0
        """Steps that were built before their tokens were known."""
        self.last_plan: StepPlan | None = None
        """What the last pass did; for the bench."""
        self._facts = BackendFacts(
            model=identity.model,
            fingerprint=identity.fingerprint,
            vocab_size=shape.vocab_size,
            context_tokens=identity.context_tokens,
            kv_bytes_per_token=shape.kv_bytes_per_token,
            num_layers=len(layout.nodes),
            device=device,
            dtype=_dtype_name(next((each.key_dtype for each in self._shapes if each is not None), shape.dtype)),
            eos_ids=identity.eos_ids,
            max_batch_rows=1 if form is Form.SINGLE else None,
            has_state=layout.num_states > 0,
            state_bytes=shape.state_bytes,
            window=layout.window,
        )

    @classmethod
    def load(
        cls, folder: Path, options: BackendOptions | None = None, *, tokenizer: Tokenizer | None = None
    ) -> MlxBackend:
        """Load the MLX model in ``folder`` for this device; ``tokenizer`` is the folder's, if it is loaded already.

        Raises:
            ModelError: the folder cannot be loaded, or the model cannot be run correctly.
        """
        try:
            return cls._load(folder, options or BackendOptions(), tokenizer)
        except BaseException as error:
            _forget(error)
            mx.clear_cache()
            _leave_thread()
            raise

    @classmethod
    def _load(cls, folder: Path, options: BackendOptions, tokenizer: Tokenizer | None) -> MlxBackend:
        """Load; what fails leaves the weights to its caller to forget."""
        from pie_mlx.models.load import load_model

        limit_cache()
        dequantize = device_name() == "cpu" if options.dequantize is None else options.dequantize
        loaded = load_model(
            folder,
            dequantize=dequantize,
            dtype=options.dtype,
            adapter=options.adapter,
            tokenizer=tokenizer,
        )
        identity = ModelIdentity(folder.name, loaded.fingerprint, loaded.context_tokens, loaded.eos_ids)
        backend = cls(loaded.module, identity, options, Verdicts(config.folder("cache") / "parity"))
        mx.clear_cache()
        return backend

    @property
    def facts(self) -> BackendFacts:
        """The model's and device's facts."""
        return self._facts

    @property
    def module(self) -> nn.Module:
        """The model as mlx-lm made it: what tests and the bench compare with, on the engine's thread."""
        return self._forward.module

    @property
    def form(self) -> Form:
        """How the model is given its K/V."""
        return self._forward.form

    @property
    def arena(self) -> Arena:
        """The arena that :meth:`allocate` made."""
        assert self._arena is not None, "allocate() comes first"
        return self._arena

    def allocate(self, num_pages: int, page_size: int) -> None:
        """Make the arena: ``(num_pages + 1) * page_size`` slots, page 0 is the trash page.

        Raises:
            DeviceFailed: there is not enough memory.
        """
        self._arena = self._ahead = None
        try:
            self._arena = Arena(self._shapes, (num_pages + 1) * page_size)
        except _DEVICE_FAULTS as error:
            raise DeviceFailed(f"the arena of {num_pages} pages could not be allocated: {error}") from error

    def step(self, segments: Sequence[Segment], foresee: Foresee | None = None) -> list[Outcome]:
        """Run one step; return one outcome a segment, in order.

        Raises:
            DeviceFailed: the device failed; no segment has a result.
        """
        step, self._num_steps = self._num_steps, self._num_steps + 1
        try:
            batches = self._forward.batches(segments)
            if len(batches) == 1:
                return self._pass(segments, foresee if self._builds_ahead else None)
            outcomes: list[Outcome | None] = [None] * len(segments)
            for places in batches:
                for place, outcome in zip(places, self._pass([segments[i] for i in places]), strict=True):
                    outcomes[place] = outcome
            return [outcome for outcome in outcomes if outcome is not None]
        except _DEVICE_FAULTS as error:
            self._ahead = None
            raise DeviceFailed(f"{type(error).__name__}: {error}", step) from error

    def _pass(self, segments: Sequence[Segment], foresee: Foresee | None = None) -> list[Outcome]:
        """Run one pass, as it was foreseen or anew, and build the next while the device works."""
        arena = self.arena
        running = self._take_ahead(segments)
        if running is None:
            running = Pass(segments, self._settings, self._forward, arena)
        self.last_plan = running.plan
        running.launch(arena)
        expected = [] if foresee is None else foresee()
        if expected and len(self._forward.batches(expected)) == 1:
            self._ahead = self._build_ahead(expected)
        outcomes = running.finish(arena)
        return outcomes if not running.is_unhealthy else self._isolate(segments, outcomes)

    def _take_ahead(self, segments: Sequence[Segment]) -> Pass | None:
        """Return the pass that was built ahead if it is for these segments; else it is dropped."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or not ahead.fits(segments):
            return None
        ahead.fill(segments)
        self.num_ahead += 1
        return ahead

    def _build_ahead(self, segments: Sequence[Segment]) -> Pass | None:
        """Build a pass that may come next; one that cannot be built fails when it is asked for, with its step."""
        try:
            return Pass(segments, self._settings, self._forward, self.arena)
        except _DEVICE_FAULTS:
            return None

    def _isolate(self, segments: Sequence[Segment], outcomes: list[Outcome]) -> list[Outcome]:
        """Repeat a pass in which a row went wrong, one segment at a time, each over no slots but its own."""
        self._ahead = None
        if len(segments) > 1:
            return [outcome for segment in segments for outcome in self._pass([segment])]
        self.arena.scrub(segments[0].write_slots)
        return outcomes

    def read_slots(self, slots: IntArray) -> dict[str, npt.NDArray[np.generic]]:
        """Copy the K/V of ``slots`` out of the arena."""
        return self.arena.read_slots(slots)

    def write_slots(self, slots: IntArray, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        """Copy K/V as :meth:`read_slots` gave it into ``slots``.

        Raises:
            DeviceFailed: the arrays do not fit this arena.
        """
        self._ahead = None
        try:
            self.arena.write_slots(slots, arrays)
        except (*_DEVICE_FAULTS, KeyError) as error:
            raise DeviceFailed(f"K/V could not be restored: {error}") from error

    def memory(self) -> dict[str, int]:
        """Return byte counts by name: active, peak, cache, arena."""
        return {
            "active": mx.get_active_memory(),
            "peak": mx.get_peak_memory(),
            "cache": mx.get_cache_memory(),
            "arena": 0 if self._arena is None else self._arena.nbytes,
        }

    def close(self) -> None:
        """Free the arena and the model."""
        self._arena = self._ahead = None
        del self._forward
        mx.clear_cache()
        _leave_thread()


def _forget(error: BaseException) -> None:
    """Let go of what the frames of an error hold: a refused model's weights would stay as long as the error."""
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__
    gc.collect()  # modules and their parts refer to each other


def _leave_thread() -> None:
    """Take this thread's MLX streams down, unless it is the main thread.

    A stream that outlives its thread aborts the process at exit, now and then (mlx 0.32.4, CPU); the main thread
    never ends before, and other models may still run on its stream.
    """
    mx.synchronize()
    if threading.current_thread() is not threading.main_thread():
        mx.clear_streams()


def _dtype_name(dtype: mx.Dtype) -> str:
    """Return ``float32`` for ``mx.float32``."""
    return str(dtype).removeprefix("mlx.core.")
