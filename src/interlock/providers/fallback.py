"""Several models as one: the next is asked when one fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, cast

from msgspec.structs import replace

from ..errors import ProviderError, UsageError
from ..messages import Usage
from ..model import Model, ModelEvent, ModelRequest, ModelResponse, StreamRestarted, TextDelta

__all__ = ["FallbackModel"]

logger = logging.getLogger("interlock.providers")


class FallbackModel:
    """Asks the first of ``models``, and the next one whenever one raises a ProviderError; what the last one raises goes on.

    What a model had shown before it failed is withdrawn by a ``StreamRestarted`` event before the next one begins, so no consumer
    keeps text twice. All of it is one attempt of a model step: the machine's own retries come after every model has failed. The
    tokens of failed attempts are counted. Each fallback is a WARNING on the logger ``interlock.providers``.

    Raises UsageError for fewer than two models, or what is none.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        given: Any = models
        if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
            raise UsageError(f"FallbackModel takes a list of models, not {type(given).__name__}")
        self.models = tuple(models)
        for model in self.models:
            if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
                what = type(cast("object", model)).__name__
                raise UsageError(f"FallbackModel takes models, not {what}; a spec such as 'openai:NAME' is none")
        if len(self.models) < 2:
            raise UsageError("FallbackModel needs at least two models")
        self.name = " | ".join(str(getattr(model, "name", type(model).__name__)) for model in self.models)
        self.native_output = all(getattr(model, "native_output", False) for model in self.models)

    def __repr__(self) -> str:
        return f"FallbackModel([{', '.join(map(repr, self.models))}])"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream one response, of the first model that gives one. Raises the last one's ProviderError, with the tokens of all."""
        shown, spent = False, None
        for place, model in enumerate(self.models):
            if shown:
                shown = False
                yield StreamRestarted(reason="fallback")
            text_shown = False
            try:
                async with aclosing(_closable(model.stream(request))) as events:
                    async for event in events:
                        if isinstance(event, ModelResponse):
                            if event.message.content and not text_shown and place:
                                yield TextDelta(event.message.content)  # what this one did not stream takes the place of what was withdrawn
                            yield event if spent is None else replace(event, usage=spent if event.usage is None else spent + event.usage)
                            spent = None
                            continue
                        shown, text_shown = True, text_shown or type(event) is TextDelta
                        yield event
                return
            except ProviderError as error:
                if isinstance(error.usage, Usage):
                    spent = error.usage if spent is None else spent + error.usage
                if place == len(self.models) - 1:  # the same model may be in the list twice
                    error.usage = spent
                    raise
                logger.warning("%r failed, %r is asked instead: %s", model, self.models[place + 1], error)

    async def aclose(self) -> None:
        """Close every model. Idempotent."""
        await asyncio.gather(*(model.aclose() for model in self.models))


def _closable(stream: AsyncIterator[ModelEvent]) -> AsyncGenerator[ModelEvent, None]:
    """``stream``, which need not have an ``aclose``."""
    if hasattr(stream, "aclose"):
        return cast("AsyncGenerator[ModelEvent, None]", stream)

    async def closable() -> AsyncGenerator[ModelEvent, None]:
        async for event in stream:
            yield event

    return closable()
