"""What cannot be held to a grammar, told as a fault of the request's field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pie_mlx.models.constrained import ConstraintUnavailable, SchemaError
from pie_mlx.server.errors import BadRequestError, NotSupportedError


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Name the field that asked for a grammar.

    Raises:
        BadRequestError: the schema in it is not one, or uses what cannot be held.
        NotSupportedError: llguidance is not installed, or the model has no token that ends an answer.
    """
    try:
        yield
    except ConstraintUnavailable as error:
        raise NotSupportedError(error.reason, param) from error
    except SchemaError as error:
        raise BadRequestError(error.reason, param) from error
