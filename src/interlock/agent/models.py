"""Model spec strings: ``vendor:NAME``, and what stands behind each."""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from typing import Any, NamedTuple

from ..errors import UsageError
from ..model import Model

_HELP = (
    "use 'openai:NAME', 'openai-responses:NAME', 'anthropic:NAME', 'google:NAME', 'deepseek:NAME', 'openrouter:NAME', 'ollama:NAME', "
    "'openai-compatible:NAME@http://host/v1', 'local:/path/to/model.gguf', or a Model object ('interlock models' shows all forms)"
)

# What has a wire of its own: the adapter's module and class, and the variables any of which may hold its key.
_WIRES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "openai-responses": ("openai", "OpenAIResponsesModel", ("OPENAI_API_KEY",)),
    "anthropic": ("anthropic", "AnthropicModel", ("ANTHROPIC_API_KEY",)),
    "google": ("google", "GoogleModel", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
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
        Vendor(name, f"{name}:NAME" if profile.url else f"{name}:NAME@http://host/v1", _first(profile.key_variables), profile.url or None)
        for name, profile in _profiles().items()
    )
    wires = tuple(Vendor(name, f"{name}:NAME", _variable(keys), None) for name, (_, _, keys) in _WIRES.items())
    compatible = Vendor("openai-compatible", "openai-compatible:NAME@http://host/v1", None, None)
    return (*keyed, *wires, compatible, Vendor("local", "local:/path/to/model.gguf", None, None))


def _variable(keys: tuple[str, ...]) -> str:
    """The one of several that holds the key; the first if none does."""
    return next((key for key in keys if os.environ.get(key, "").strip()), keys[0])


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
    if vendor in _WIRES:
        module, adapter, _ = _WIRES[vendor]
        return getattr(import_module(f"..providers.{module}", __package__), adapter)(name)
    if vendor == "local":
        return import_module("..providers.local", __package__).LocalModel(name)
    return _chat(spec, vendor, name)


def _chat(spec: str, vendor: str, name: str) -> Model:
    """A model behind chat completions: at the vendor's own address, or at the one in the spec."""
    profiles = _profiles()
    if vendor != "openai-compatible" and vendor not in profiles:
        raise UsageError(f"model: there is no vendor {vendor!r} in this version; {_HELP}")
    before, at, url = name.rpartition("@")
    url = url if at and before and url.startswith(("http://", "https://")) else None
    if url is None and (vendor == "openai-compatible" or not profiles[vendor].url):
        raise UsageError(f"model: {spec[:80]!r} needs a name and a URL: '{vendor}:NAME@http://host/v1'")
    chat = import_module("..providers.openai", __package__).OpenAIChatModel
    options = {} if vendor in ("openai", "openai-compatible") else {"profile": vendor}
    return chat(before if url else name, base_url=url, **options)


def _profiles() -> dict[str, Any]:
    return import_module("..providers.profiles", __package__).PROFILES


def _first(names: tuple[str, ...]) -> str | None:
    return names[0] if names else None
