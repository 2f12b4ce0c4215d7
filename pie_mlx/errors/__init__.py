"""One tree of errors: every failure a user can meet, with its facts as fields.

The type of an error survives from the device to the exit code: nothing between the two
may replace one of these by a bare string, an empty result or another type. Each class
names a stable ``code`` (JSON and HTTP), an ``exit_code`` (command line) and, where one
exists, a ``hint``: the command that helps.
"""

from pie_mlx.errors.base import Fact, Holder, PieError
from pie_mlx.errors.device import DeviceError, DeviceFailed, EngineDead, Stalled, StepTimeout
from pie_mlx.errors.models import (
    AdapterInvalid,
    ChecksumMismatch,
    DiskFull,
    DownloadFailed,
    ModelCorrupt,
    ModelError,
    ModelNotFound,
    NetworkUnavailable,
    TemplateError,
    TokenizerMissing,
    UnsupportedModel,
)
from pie_mlx.errors.pressure import (
    Deadlock,
    Evicted,
    Hog,
    Impossible,
    Leak,
    NotEnoughMemory,
    OutOfPages,
    PressureError,
    Starved,
)
from pie_mlx.errors.requests import Cancelled, ContextBusy, ContextClosed, ContextTooLong, EmptyPrompt, InvalidLogits
from pie_mlx.errors.snapshots import SnapshotCorrupt, SnapshotError, SnapshotMismatch, SnapshotMissing, SnapshotVersion
from pie_mlx.errors.usage import ConfigError, InvalidParameter, UsageError

__all__ = [
    "AdapterInvalid",
    "Cancelled",
    "ChecksumMismatch",
    "ConfigError",
    "ContextBusy",
    "ContextClosed",
    "ContextTooLong",
    "Deadlock",
    "DeviceError",
    "DeviceFailed",
    "DiskFull",
    "DownloadFailed",
    "EmptyPrompt",
    "EngineDead",
    "Evicted",
    "Fact",
    "Hog",
    "Holder",
    "Impossible",
    "InvalidLogits",
    "InvalidParameter",
    "Leak",
    "ModelCorrupt",
    "ModelError",
    "ModelNotFound",
    "NetworkUnavailable",
    "NotEnoughMemory",
    "OutOfPages",
    "PieError",
    "PressureError",
    "SnapshotCorrupt",
    "SnapshotError",
    "SnapshotMismatch",
    "SnapshotMissing",
    "SnapshotVersion",
    "Stalled",
    "Starved",
    "StepTimeout",
    "TemplateError",
    "TokenizerMissing",
    "UnsupportedModel",
    "UsageError",
]
