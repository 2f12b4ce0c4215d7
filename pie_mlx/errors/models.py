"""Models: exit code 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pie_mlx.errors.base import PieError


@dataclass(eq=False)
class ModelError(PieError):
    """A model is missing or cannot be loaded."""

    code: ClassVar[str] = "model"
    exit_code: ClassVar[int] = 3
    model: str
    reason: str
    suggestion: str | None = None

    @property
    def message(self) -> str:
        """Name the model and what is wrong."""
        return f"{self.model}: {self.reason}"

    @property
    def hint(self) -> str | None:
        """The suggestion, as given."""
        return self.suggestion


class ModelNotFound(ModelError):
    """No registry entry, folder or file has this name, or it is not pulled yet."""

    code: ClassVar[str] = "model_not_found"


class ModelCorrupt(ModelError):
    """A file of the model is truncated, malformed or contradicts another."""

    code: ClassVar[str] = "model_corrupt"


class AdapterInvalid(ModelError):
    """A low-rank adapter is not there, is not complete, or was made for another model; names the adapter."""

    code: ClassVar[str] = "adapter_invalid"


class ChecksumMismatch(ModelError):
    """A downloaded file is not the one that the registry pins."""

    code: ClassVar[str] = "checksum_mismatch"


class TokenizerMissing(ModelError):
    """The model has no tokenizer that can be read; names where it was looked for."""

    code: ClassVar[str] = "tokenizer_missing"


class UnsupportedModel(ModelError):
    """The architecture, quantization or tokenizer kind is not one we run correctly."""

    code: ClassVar[str] = "unsupported_model"


class TemplateError(ModelError):
    """The chat template is missing, or refuses these messages."""

    code: ClassVar[str] = "chat_template"


class DownloadFailed(ModelError):
    """The source answered with an error."""

    code: ClassVar[str] = "download_failed"


class NetworkUnavailable(ModelError):
    """The source could not be reached, or the network is switched off."""

    code: ClassVar[str] = "network_unavailable"


class DiskFull(ModelError):
    """There is not enough space for the download or the conversion."""

    code: ClassVar[str] = "disk_full"
