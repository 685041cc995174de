"""Any GGUF file as a model, run on this machine by llama.cpp: ``pip install "interlock[local]"``."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path

from ..errors import ProviderError, UsageError
from ..messages import Usage
from ..model import ModelEvent, ModelRequest
from ._wire import WireOptions
from .by_schema import CallsBySchema
from .local_server import LocalServer
from .openai import OpenAIChatModel

__all__ = ["LocalModel"]

# llama.cpp rounds a smaller context up to this.
_CONTEXT_MIN = 256

# A process that dies closes its sockets first, and can be waited for a moment later.
_GOING_S = 0.5


class LocalModel:
    """The model in a GGUF file. One instance serves many sessions and event loops.

    The first request starts llama.cpp's server as a process of its own on 127.0.0.1 and loads the file; ``aclose``, or the end
    of this process, ends it, and the next request starts it anew. Replies are held to a JSON schema (see ``CallsBySchema``).

    path: the file; of one in parts, the first part. context: how many tokens a conversation and its reply may have together.
    threads: how many compute; None leaves it to llama.cpp. parallel: how many requests are computed at once, each with a
    context of its own; further ones wait. gpu_layers: how many layers go to the GPU, if llama.cpp was built for one.
    start_timeout_s: how long loading may take. first_byte_timeout_s, idle_timeout_s, exchange_timeout_s: see ``WireOptions``.

    Raises UsageError if xllamacpp is not installed, the file is missing or no GGUF file, or a value makes no sense.
    """

    native_output = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        context: int = 4096,
        threads: int | None = None,
        parallel: int = 1,
        gpu_layers: int | None = None,
        start_timeout_s: float | None = 300.0,
        first_byte_timeout_s: float | None = 600.0,
        idle_timeout_s: float | None = 120.0,
        exchange_timeout_s: float | None = 3600.0,
    ) -> None:
        self.path = _checked(path)
        self.name = self.path.stem
        self.context = _count("context", context, least=_CONTEXT_MIN)
        self._settings = {
            "model": str(self.path),
            "context": self.context,
            "threads": None if threads is None else _count("threads", threads),
            "parallel": _count("parallel", parallel),
            "gpu_layers": None if gpu_layers is None else _count("gpu_layers", gpu_layers, least=0),
        }
        if start_timeout_s is not None and not start_timeout_s > 0:
            raise UsageError(f"start_timeout_s: a number of seconds above 0 is needed, not {start_timeout_s!r}")
        self._start_timeout_s = start_timeout_s
        self._options: WireOptions = {
            "first_byte_timeout_s": first_byte_timeout_s,
            "idle_timeout_s": idle_timeout_s,
            "exchange_timeout_s": exchange_timeout_s,
            # llama.cpp's server closes idle connections, also in the moment in which one is used again; here a new one costs nothing.
            "headers": {"Connection": "close"},
        }
        if find_spec("xllamacpp") is None:
            raise UsageError('a model on this machine needs xllamacpp: pip install "interlock[local]"')
        self._starting = threading.Lock()
        self._server: LocalServer | None = None
        self._model: CallsBySchema | None = None
        self._end: weakref.finalize[[], LocalModel] | None = None

    def __repr__(self) -> str:
        return f"LocalModel({str(self.path)!r}, context={self.context})"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream one response. Closing the generator, or cancelling its task, ends the computing of the reply.

        Raises ProviderError: not retryable if the file cannot be loaded or the conversation does not fit into the context.
        """
        server: LocalServer | None = None
        try:
            server = self._running()
            listening = await server.ready(self._start_timeout_s)
            model = self._model
            if model is None or self._server is not server:
                chat = OpenAIChatModel(
                    self.name, base_url=f"{listening.url}/v1", api_key=listening.key, native_output=True, **self._options
                )
                model = CallsBySchema(chat, grammar=listening.llguidance)
                if self._server is server:
                    self._model = model
            async with aclosing(model.stream(request)) as events:
                async for event in events:
                    yield event
        except ProviderError as error:
            raise await self._explained(error, server) from error

    async def aclose(self) -> None:
        """End the server, and with it every reply that is being computed. Idempotent; the model can be used again afterwards."""
        server, self._server, model, self._model = self._server, None, self._model, None
        if server is None:
            return
        if self._end is not None:
            self._end.detach()
        server.stop()
        if model is not None:
            await model.aclose()
        await server.ended()

    def cost_usd(self, usage: Usage) -> float:
        """0.0: nobody sends a bill."""
        return 0.0

    def _running(self) -> LocalServer:
        """The server, started if there is none, or if it has ended by itself."""
        with self._starting:
            server = self._server
            if server is None or not server.alive:
                if server is not None and self._end is not None:
                    self._end()
                server = self._server = LocalServer(self._settings)
                self._model = None
                self._end = weakref.finalize(self, server.stop)
            return server

    async def _explained(self, error: ProviderError, server: LocalServer | None) -> ProviderError:
        """``error`` with what to do about it."""
        text = str(error)
        if error.code == "exceed_context_size_error":
            text = f"{self.name}: context={self.context} is too small for this conversation; pass a larger one, or say less ({text})"
        elif error.code == "out_of_memory":
            text = f"{self.name}: {text}; pass a smaller context= or parallel=, or use a smaller model"
        elif error.kind in ("cut", "connect") and error.retryable and server is not None and await server.ended(_GOING_S):
            text = f"{self.name}: the server of this model is gone: {server.fault()} ({text})"
        else:
            text = f"{self.name}: {text}"
        return ProviderError(
            text,
            retryable=error.retryable,
            retry_after_s=error.retry_after_s,
            status=error.status,
            kind=error.kind,
            code=error.code,
            usage=error.usage,
        )


def _checked(path: str | os.PathLike[str]) -> Path:
    """The file, which must look like what it should be."""
    try:
        found = Path(path).expanduser()
        with found.open("rb") as file:
            magic = file.read(4)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"the model {str(path)!r} cannot be read: {error}; a path to a GGUF file is needed") from None
    if magic != b"GGUF":
        raise UsageError(f"{str(found)!r} is not a GGUF file, or it is damaged: it begins with {magic!r}")
    return found.resolve()


def _count(name: str, value: object, *, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value
