"""``interlock config``: what is set, where, and what it means."""

from __future__ import annotations

import json
from typing import Any

from .settings import SCHEMA, Settings, key_named
from .text import console, one_line

__all__ = ["explain", "show"]


def show(settings: Settings, *, as_json: bool) -> int:
    """Every key with its value, and where that comes from."""
    out = console()
    if as_json:
        every = {key: {"value": settings.of(key).value, "from": settings.of(key).where, "layer": settings.of(key).layer} for key in SCHEMA}
        print(json.dumps(every, indent=2, ensure_ascii=False))
        return 0
    width = max(map(len, SCHEMA))
    for key in SCHEMA:
        here = settings.of(key)
        style = "" if here.layer == "default" else "bold"
        out.print(f"{key:{width}}  {one_line(_value(key, here.value), width=60)}  ({here.where})", style=style)
    for path in settings.files:
        out.print(f"read: {path}", style="dim")
    return 0


def explain(settings: Settings, key: str, *, as_json: bool) -> int:
    """One key: its value, where it comes from, what it means, what else set it, and how to set it."""
    setting = key_named(key)
    here, *others = settings.found[setting.key]
    if as_json:
        sources = [{"value": found.value, "from": found.where, "layer": found.layer} for found in settings.found[setting.key]]
        described: dict[str, Any] = {"key": setting.key, "value": here.value, "from": here.where, "meaning": setting.meaning}
        described |= {"variable": setting.variable, "flag": setting.flag, "sources": sources}
        print(json.dumps(described, indent=2, ensure_ascii=False))
        return 0
    out = console()
    out.print(f"{setting.key} = {_value(setting.key, here.value)}", style="bold")
    out.print(f"  from       {here.where}" + ("" if here.layer in ("default", "flag") else f" ({here.layer})"))
    out.print(f"  means      {setting.meaning}")
    for other in others:
        said = "the default is" if other.layer == "default" else f"overrides {other.where} ({other.layer}),"
        out.print(f"  {'and' if other is not others[0] else 'otherwise':10} {said} {_value(setting.key, other.value)}")
    ways = [f"{setting.flag} (one command)"] if setting.flag else []
    out.print(f"  set it by  {', '.join([*ways, setting.variable, f'{setting.key} in interlock.toml or the user file'])}")
    return 0


def _value(key: str, value: Any) -> str:
    if value is not None:
        return json.dumps(value, ensure_ascii=False)
    return {"journal": "SQLite in the user's data directory", "system": "Interlock's own words"}.get(key, "not set")
