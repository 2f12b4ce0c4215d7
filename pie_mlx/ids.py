"""The ids of the engine, as distinct types so that they cannot be mixed up."""

from __future__ import annotations

from typing import NewType

PageId = NewType("PageId", int)
"""A page of the pool, from 1; page 0 is the arena's trash page and is never handed out."""

ContextId = NewType("ContextId", int)
"""A context, counted from 1 for the life of the engine."""

RequestId = NewType("RequestId", int)
"""A request, counted from 1 in the order of arrival."""

TRASH_PAGE = PageId(0)
"""Where padded and throw-away rows write their K/V; no view ever shows it."""
