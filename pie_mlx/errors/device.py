"""The device and the engine: exit code 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pie_mlx.errors.base import PieError


@dataclass(eq=False)
class DeviceError(PieError):
    """The device, or the thread that owns it, failed."""

    code: ClassVar[str] = "device"
    exit_code: ClassVar[int] = 4


@dataclass(eq=False)
class DeviceFailed(DeviceError):
    """A device call raised, hung, or gave no row back."""

    code: ClassVar[str] = "device_failed"
    reason: str
    step: int | None = None

    @property
    def message(self) -> str:
        """Give the reason and the step."""
        at = "" if self.step is None else f" at step {self.step}"
        return f"the device failed{at}: {self.reason}"

    @property
    def hint(self) -> str | None:
        """Look at the machine; a watchdog kill wants a smaller chunk."""
        if "Impacting Interactivity" in self.reason:
            return "the system ended a long GPU command: lower --prefill-chunk (512 or less)"
        return "run pie-mlx doctor"


@dataclass(eq=False, kw_only=True)
class StepTimeout(DeviceFailed):
    """A device call has not returned within its limit: the device is given up, and the engine with it."""

    code: ClassVar[str] = "step_timeout"
    reason: str = "a device call has not returned"
    waited_s: float
    limit_s: float

    @property
    def message(self) -> str:
        """Give both times."""
        return f"{self.reason} for {self.waited_s:.1f} s, over its limit of {self.limit_s:.1f} s"


@dataclass(eq=False)
class Stalled(DeviceError):
    """Work was there, the device answered, and yet nothing moved."""

    code: ClassVar[str] = "stalled"
    waited_s: float
    cause: str

    @property
    def message(self) -> str:
        """Give the time and the cause."""
        return f"no progress for {self.waited_s:.1f} s: {self.cause}"


@dataclass(eq=False)
class EngineDead(DeviceError):
    """The engine has ended; no request can run on it any more."""

    code: ClassVar[str] = "engine_dead"
    reason: str

    @property
    def message(self) -> str:
        """Give the reason of the end."""
        return f"the engine has ended: {self.reason}"
