"""Tools for a model whose endpoint can hold it to a JSON schema, and can do no more than that."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from ..model import Model, ModelEvent, ModelRequest, ModelResponse, ReasoningDelta, StreamRestarted, TextDelta
from .form_reader import FormReader, read_form
from .forms import as_text

__all__ = ["CallsBySchema"]


class CallsBySchema:
    """Gives tools to ``model``, which has none of its own: each of its replies is held to one JSON schema.

    A reply is one call or an answer, never both and never two calls. The model must heed ``ModelRequest.output``; that of an
    OpenAI-compatible endpoint with ``response_format`` does so under ``native_output=True``. How the conversation is put into
    text is said in ``interlock.providers.forms``. A request that offers no tools is sent as it is, and its reply is free text.

    grammar: the endpoint is llama.cpp with LLGuidance, whose ``grammar`` field costs fewer tokens than ``response_format``.
    """

    native_output = True

    def __init__(self, model: Model, *, grammar: bool = False) -> None:
        self.model = model
        self.name = str(getattr(model, "name", type(model).__name__))
        self.base_url = getattr(model, "base_url", None)
        self._grammar = grammar

    def __repr__(self) -> str:
        return f"CallsBySchema({self.model!r})"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream one response: the text of an answer as it comes, or the fragments of one call.

        Raises what the model raises, and ProviderError of kind ``malformed`` for a reply that is of neither form.
        """
        asked, formed = as_text(request, grammar=self._grammar)
        reader = FormReader()
        events = self.model.stream(asked)
        async with AsyncExitStack() as stack:
            if isinstance(events, AsyncGenerator):
                stack.push_async_callback(events.aclose)
            async for event in events:
                if not formed or isinstance(event, ReasoningDelta):
                    yield event
                elif isinstance(event, TextDelta):
                    for delta in reader.feed(event.text):
                        yield delta
                elif isinstance(event, ModelResponse):
                    yield read_form(event)
                elif isinstance(event, StreamRestarted):
                    reader = FormReader()
                    yield event

    async def aclose(self) -> None:
        """Close the model. Idempotent."""
        await self.model.aclose()
