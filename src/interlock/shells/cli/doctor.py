"""``interlock doctor``: is everything that a run needs in order? Keys are said to be set or not; nothing of them is shown."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from ... import __version__
from ...agent.models import Vendor, model_of, vendors
from ...errors import InterlockError, UsageError
from ...journal import SQLiteJournal, open_journal
from ...journal.health import health
from ..finding import AUTO, Server, at_once, auto_model, find_servers, look_at
from .jsonl import write_line
from .layers import order
from .models import key_state
from .permissions import guards
from .run import hooks_of, the_tools
from .settings import Settings
from .text import console, printable

__all__ = ["SIGNS", "Check", "doctor"]

SIGNS = {"ok": ("✓", "green"), "note": ("·", ""), "broken": ("✗", "bold red")}
LIBRARIES = ("aiohttp", "docstring-parser", "msgspec", "pydantic", "rich", "typer")
# Enough for a handshake with the other side of the world; a look-up of a name may take longer, and is given up.
ENDPOINT_S = 3.0


class Check(NamedTuple):
    """One line. state: ``ok``, ``note`` or ``broken``."""

    topic: str
    state: str
    what: str


def doctor(*, as_json: bool) -> int:
    """Print every check; returns 1 if something that a run needs is broken."""
    out = console()
    broken = 0
    topic = ""
    for check in _checks():
        broken += check.state == "broken"
        if as_json:
            write_line(check._asdict())
            continue
        if check.topic != topic:
            topic = check.topic
            out.print(topic, style="bold")
        sign, style = SIGNS[check.state]
        out.print(f"  {sign} {printable(check.what)}", style=style)
    if not as_json:
        out.print()
        out.print(f"{broken} broken: see ✗ above" if broken else "nothing is broken", style="bold red" if broken else "bold green")
    return 1 if broken else 0


def _checks() -> Iterator[Check]:
    yield from _versions()
    try:
        settings = Settings.load()
    except UsageError as error:
        yield Check("settings", "broken", str(error))
        settings = None
    else:
        said = ", ".join(map(str, settings.files)) or "no settings file; the defaults hold"
        yield Check("settings", "ok" if settings.files else "note", said)
    yield from _models(settings)
    if settings is not None:
        yield from _journal(settings)
        yield from _guards(settings)
    else:
        yield Check("onion", "note", "which layers there are depends on the settings")


def _guards(settings: Settings) -> Iterator[Check]:
    """The policies, the hooks, what was allowed for good, and the layers in their order."""
    names = the_tools(settings).names
    for hook in hooks_of(settings):
        sentence, wrong = hook.look(names)
        yield Check("hooks", "broken" if wrong else "ok", sentence)
    try:
        held = [guard.policy for guard in guards(settings)]
    except UsageError as error:
        yield Check("policy", "broken", str(error))
        return
    yield from (Check("policy", "ok", str(policy)) for policy in held)
    if not held:
        yield Check("policy", "note", "none holds: every tool call runs")
    try:
        layers = order(settings)
    except UsageError as error:
        yield Check("onion", "broken", str(error))
        return
    for place, layer in enumerate(layers, 1):
        yield Check("onion", "ok", f"{place}. {layer.name} ({layer.priority})")


def _versions() -> Iterator[Check]:
    yield Check("versions", "ok", f"interlock {__version__}, Python {platform.python_version()}, {platform.system()}")
    for name in LIBRARIES:
        try:
            yield Check("versions", "ok", f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Check("versions", "note", f"{name}: its version is not known")


def _models(settings: Settings | None) -> Iterator[Check]:
    seen: set[str] = set()
    for vendor in vendors():
        if vendor.key_variable and vendor.key_variable not in seen:
            seen.add(vendor.key_variable)
            yield Check("keys", "ok" if os.environ.get(vendor.key_variable, "").strip() else "note", key_state(vendor))
    if settings is None:
        return
    spec = settings.text("model")
    servers = find_servers(settings.texts("local_servers"))
    for server in servers:
        answer = f"answers with {len(server.models)} models" if server.works else "not there"
        yield Check("local servers", "ok" if server.works else "note", f"{server.name} at {server.url}: {answer}")
    if spec is None:
        yield Check("model", "note", "none is set: INTERLOCK_MODEL=openai:NAME, or --model auto; until then only the demo runs")
    else:
        yield from _the_model(spec, settings)
    yield from _endpoints(spec or "")


def _the_model(spec: str, settings: Settings) -> Iterator[Check]:
    """Whether a run could begin with this model: the spec is understood, and its key is set."""
    where = settings.of("model").where
    try:
        if spec == AUTO:
            spec, found = auto_model(servers=settings.texts("local_servers"))
            where = f"auto, by {found}"
        model_of(spec)
    except InterlockError as error:
        yield Check("model", "broken", f"{spec} ({where}): {error}")
    else:
        yield Check("model", "ok", f"{spec} ({where})")


def _endpoints(spec: str) -> Iterator[Check]:
    """Every endpoint whose key is set, and that of the model; broken only if the model needs it."""
    jobs: dict[str, Callable[[], Server]] = {}
    needed: set[str] = set()
    for vendor in vendors():
        wanted = spec.startswith(f"{vendor.name}:")
        url, headers = _endpoint(vendor, spec if wanted else "")
        if url and (wanted or headers) and vendor.name != "ollama":
            jobs[url] = lambda url=url, name=vendor.name, headers=headers: look_at(url, name=name, timeout_s=ENDPOINT_S, headers=headers)
            needed |= {url} if wanted else set()
    missing = {url: Server(url, "", None, (), f"no answer within {ENDPOINT_S:.0f} s") for url in jobs}
    for url, server in at_once(jobs, missing, timeout_s=ENDPOINT_S + 0.5).items():
        shown = url.split("?")[0]
        fails = "broken" if url in needed else "note"
        match server.status:
            case None:
                yield Check("endpoints", fails, f"{shown}: not reachable ({server.fault})")
            case 401 | 403:
                yield Check("endpoints", fails, f"{shown}: reachable, but it refuses the key (HTTP {server.status})")
            case status:
                yield Check("endpoints", "ok", f"{shown}: reachable (HTTP {status})")


def _endpoint(vendor: Vendor, spec: str) -> tuple[str | None, dict[str, str]]:
    """Where requests to ``vendor`` go, and the headers with its key. The host of a compatible server is in the spec."""
    if vendor.name == "openai-compatible":
        return spec.rpartition("@")[2] if "@" in spec else None, {}
    model: Any = None
    try:
        model = model_of(f"{vendor.name}:any")
    except InterlockError:
        pass  # no key: said above
    return getattr(model, "base_url", None) or vendor.base_url, getattr(model, "key_headers", {})


def _journal(settings: Settings) -> Iterator[Check]:
    try:
        journal = open_journal(settings.journal(create=False))
    except InterlockError as error:
        yield Check("journal", "broken", str(error))
        return
    if not isinstance(journal, SQLiteJournal):
        yield Check("journal", "note", "memory: nothing outlives a command")
        return
    for finding in health(journal.path):
        yield Check("journal", finding.state, finding.what)
