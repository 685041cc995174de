"""Model spec strings: ``vendor:NAME``, and what stands behind each."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, NamedTuple

from ..errors import UsageError
from ..model import Model

_HELP = "use 'openai:NAME', 'deepseek:NAME', 'ollama:NAME', 'openai-compatible:NAME@http://host/v1', or a Model object"

# What speaks Chat Completions under a name of its own: where it listens, and which variable holds its key.
_CHAT: dict[str, dict[str, Any]] = {
    "openai": {},
    "deepseek": {"base_url": "https://api.deepseek.com", "key_variable": "DEEPSEEK_API_KEY"},
    "ollama": {"base_url": "http://127.0.0.1:11434/v1", "key_variable": None},
}


class Vendor(NamedTuple):
    """What a spec can begin with. key_variable: the environment variable that holds its key, if it needs one."""

    name: str
    form: str
    key_variable: str | None
    base_url: str | None


def vendors() -> tuple[Vendor, ...]:
    """Every vendor of this version, ``openai`` first."""
    keyed = tuple(
        Vendor(name, f"{name}:NAME", options.get("key_variable", "OPENAI_API_KEY"), options.get("base_url"))
        for name, options in _CHAT.items()
    )
    return (*keyed, Vendor("openai-compatible", "openai-compatible:NAME@http://host/v1", None, None))


def model_of(model: object) -> Model:
    """``model`` itself, or the Model that a spec string names. Raises UsageError."""
    if isinstance(model, str):
        return _from_spec(model)
    if isinstance(model, type) or not callable(getattr(model, "stream", None)) or not callable(getattr(model, "aclose", None)):
        raise UsageError(f"model: {type(model).__name__} is no Model (it needs stream() and aclose()); {_HELP}")
    if inspect.iscoroutinefunction(getattr(model, "stream", None)):
        raise UsageError(f"model: {type(model).__name__}.stream must be an async generator ('async def' with 'yield'), not a coroutine")
    return model  # pyright: ignore[reportReturnType]  # the two methods are there: that is the protocol


def _from_spec(spec: str) -> Model:
    vendor, colon, name = spec.strip().partition(":")
    if not colon or not name.strip():
        raise UsageError(f"model: {spec[:80]!r} is no model spec; {_HELP}")
    chat = import_module("..providers.openai", __package__).OpenAIChatModel
    if vendor == "openai-compatible":
        name, at, url = name.rpartition("@")
        if not at or not name or not url.startswith(("http://", "https://")):
            raise UsageError(f"model: {spec[:80]!r} needs a name and a URL: 'openai-compatible:NAME@http://host/v1'")
        return chat(name, base_url=url)
    if vendor not in _CHAT:
        raise UsageError(f"model: there is no vendor {vendor!r} in this version; {_HELP}")
    return chat(name, **_CHAT[vendor])
