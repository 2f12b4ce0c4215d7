"""Validated settings of one engine."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class EngineSettings(BaseModel):
    """What an engine may use; every limit has its unit in its name or its description."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pool_pages: int | None = Field(default=None, ge=1, description="pages of the pool; None sizes it by memory")
    pool_memory_bytes: int | None = Field(default=None, ge=1, description="bytes of the arena; None is automatic")
    page_size: int = Field(default=16, description="slots per page: 8, 16, 32 or 64")
    max_batch: int = Field(default=32, ge=1, le=1024, description="requests that run at the same time")
    prefill_chunk: int = Field(default=512, ge=1, description="prefill tokens per step, over all requests")
    prefix_cache: bool = Field(default=True, description="keep full pages of closed contexts for reuse")
    prefix_cache_share: float = Field(default=0.5, ge=0.0, le=1.0, description="share of the pool it may keep")
    stall_timeout_s: float = Field(default=10.0, gt=0, description="no progress for this long is a stall")
    step_timeout_s: float = Field(default=120.0, gt=0, description="a step over this is a dead device")
    errand_timeout_s: float = Field(default=600.0, gt=0, description="so is other work that long without a heartbeat")
    report_dir: Path | None = Field(default=None, description="where the watchdog writes its reports; None is nowhere")
