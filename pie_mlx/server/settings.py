"""Validated settings of the daemon; every limit has its unit in its name."""

from __future__ import annotations

import ipaddress

from pydantic import BaseModel, ConfigDict, Field

from pie_mlx.errors import UsageError


class ServerSettings(BaseModel):
    """Where the daemon listens, and what it takes from one request and from all of them together."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port; 0 takes a free one")
    api_key: str | None = Field(None, min_length=8, repr=False, description="what a client must send as its bearer")
    served_name: str | None = Field(None, min_length=1, description="name of the model in answers; None is its own")

    max_body_bytes: int = Field(4 << 20, ge=1)
    max_headers: int = Field(64, ge=8)
    max_header_bytes: int = Field(16 << 10, ge=1024)
    max_messages: int = Field(1024, ge=1)
    max_choices: int = Field(16, ge=1, description="answers of one request: prompts times n")
    max_tools: int = Field(128, ge=0)
    max_connections: int = Field(512, ge=1, description="exchanges in flight, waiting ones included")
    max_running: int = Field(32, ge=1, description="completions that may be on the engine at the same time")
    max_waiting: int = Field(128, ge=0, description="completions that may wait for their turn; more get a 429")
    max_searches: int = Field(4, ge=1, description="searches at the same time")
    max_waiting_searches: int = Field(32, ge=0)
    max_search_nodes: int = Field(4096, ge=1)
    max_search_width: int = Field(64, ge=1, description="breadth, beam, depth and rollouts of a search")

    max_unread_events: int = Field(20_000, ge=1, description="a search whose reader is further behind is ended")

    body_timeout_s: float = Field(30.0, gt=0, description="for the whole body to arrive")
    request_timeout_s: float = Field(600.0, gt=0, description="from the last byte of a request to its answer's")
    drain_timeout_s: float = Field(30.0, ge=0, description="what is running at the first signal may take this long")
    keep_alive_s: int = Field(5, ge=0)
    heartbeat_s: float = Field(10.0, gt=0, description="a stream that has nothing to say sends a comment this often")

    default_max_tokens: int = Field(512, ge=1, description="where a request does not say")
    temperature: float = Field(1.0, ge=0, description="where a request does not say; 1 is the protocol's default")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)
    logs_prompts: bool = Field(False, description="whether prompts and answers are logged")

    def check(self) -> None:
        """Refuse to be reachable from elsewhere without a key.

        Raises:
            UsageError: the address is not this machine's own, and there is no key.
        """
        if not is_loopback(self.host) and self.api_key is None:
            raise UsageError(
                f"listening on {self.host} lets other machines in, and there is no key",
                "add --api-key-file FILE (or --api-key KEY), or listen on 127.0.0.1",
            )


def is_loopback(host: str) -> bool:
    """Whether a name or an address can only be reached from this machine."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
