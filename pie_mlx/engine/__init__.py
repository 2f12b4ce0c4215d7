"""The engine: contexts, requests, the scheduler, and the one thread that owns the device."""

from pie_mlx.engine.completion import Completion, Piece
from pie_mlx.engine.context import Context
from pie_mlx.engine.engine import Engine
from pie_mlx.engine.readings import Readings
from pie_mlx.engine.request import Request
from pie_mlx.engine.settings import EngineSettings

__all__ = ["Completion", "Context", "Engine", "EngineSettings", "Piece", "Readings", "Request"]
