"""``interlock models``: how a model is named, which keys are set, and which local servers answer."""

from __future__ import annotations

import os

from ...agent.models import Vendor, vendors
from ..finding import AUTO, find_servers
from .jsonl import write_line
from .settings import Settings
from .text import console, printable

__all__ = ["key_state", "models"]

# A server with a hundred models is listed by its first ones.
MODELS_SHOWN = 8


def models(settings: Settings, *, as_json: bool) -> int:
    """Keys are said to be set or not; nothing of them is shown."""
    servers = find_servers(settings.texts("local_servers"))
    here = settings.of("model")
    if as_json:
        forms = [{"form": v.form, "key_variable": v.key_variable, "key_set": _is_set(v)} for v in vendors()]
        found = [{"name": s.name, "url": s.url, "answers": s.works, "models": list(s.models)} for s in servers]
        write_line({"model": here.value, "from": here.where, "forms": forms, "local_servers": found})
        return 0
    out = console()
    none = "none is set; INTERLOCK_MODEL, --model or interlock.toml sets it"
    out.print(f"model: {here.value} ({here.where})" if here.value else f"model: {none}")
    out.print()
    width = max(len(vendor.form) for vendor in vendors())
    for vendor in vendors():
        out.print(f"{vendor.form:{width}}  {key_state(vendor)}", style="green" if _is_set(vendor) else "")
    out.print(f"{AUTO:{width}}  the first key that is set, else the first local server with a model")
    out.print()
    for server in servers:
        if not server.works:
            out.print(f"{server.name:10}  {server.url}  not there", style="dim")
            continue
        names = ", ".join(map(printable, server.models[:MODELS_SHOWN])) or "no model loaded"
        more = f", and {len(server.models) - MODELS_SHOWN} more" if len(server.models) > MODELS_SHOWN else ""
        out.print(f"{server.name:10}  {server.url}  {names}{more}", style="green")
        for name in server.models[:1]:
            out.print(f"{'':10}  --model 'openai-compatible:{printable(name)}@{server.url}/v1'", style="dim")
    return 0


def key_state(vendor: Vendor) -> str:
    if vendor.key_variable is None:
        return "needs no key"
    return f"{vendor.key_variable} is {'set' if _is_set(vendor) else 'not set'}"


def _is_set(vendor: Vendor) -> bool:
    return bool(vendor.key_variable and os.environ.get(vendor.key_variable, "").strip())
