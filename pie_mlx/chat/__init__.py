"""Chat: a conversation is a tree of turns over forked contexts, kept in a crash-safe store.

Nothing here knows a terminal: ``pie-mlx chat`` and the workbench are front ends of the same session and commands.
"""

from pie_mlx.chat.reply import Reply, ReplyPiece
from pie_mlx.chat.session import ChatSession
from pie_mlx.chat.settings import ChatSettings
from pie_mlx.chat.store import SessionStore
from pie_mlx.chat.turns import Turn, TurnState, TurnTree

__all__ = ["ChatSession", "ChatSettings", "Reply", "ReplyPiece", "SessionStore", "Turn", "TurnState", "TurnTree"]
