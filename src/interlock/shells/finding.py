"""Which models can be used from here: the keys in the environment, and the servers that run on this machine."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from ..agent.models import vendors
from ..errors import UsageError

__all__ = ["AUTO", "LOCAL_SERVERS", "Server", "at_once", "auto_model", "find_servers", "look_at"]

AUTO = "auto"
LOCAL_SERVERS = {
    "http://127.0.0.1:11434": "Ollama",
    "http://127.0.0.1:1234": "LM Studio",
    "http://127.0.0.1:8000": "vLLM",
    "http://127.0.0.1:8080": "llama.cpp",
}
"""Where they listen unless told otherwise. All of them answer ``/v1/models``."""

# What `auto` asks for where a key is set; a key says nothing about a model's name.
_NAMES = {"openai": "gpt-5-mini", "anthropic": "claude-sonnet-4-5", "google": "gemini-2.5-flash", "deepseek": "deepseek-chat"}
# A server of this machine that needs longer to list its models is not one to start an answer with.
_LOCAL_S = 0.5
_LIST_BYTES_MAX = 1024 * 1024

T = TypeVar("T")
K = TypeVar("K")


class Server(NamedTuple):
    """What answered at ``url``. status: the HTTP status, or None if nothing answered, and then ``fault`` says why. models: their names."""

    url: str
    name: str
    status: int | None
    models: tuple[str, ...] = ()
    fault: str = ""

    @property
    def works(self) -> bool:
        return self.status == 200


def auto_model(*, servers: Sequence[str]) -> tuple[str, str]:
    """A model spec for ``--model auto``, and where it was found: the first key that is set, or the first local server with a model.

    Raises UsageError, which says what to set, if there is none.
    """
    for vendor in vendors():
        if vendor.key_variable and os.environ.get(vendor.key_variable, "").strip() and vendor.name in _NAMES:
            return f"{vendor.name}:{_NAMES[vendor.name]}", vendor.key_variable
    for server in find_servers(servers):
        usable = [name for name in server.models if "embed" not in name.lower()]
        if usable:
            return f"openai-compatible:{usable[0]}@{server.url}/v1", f"{server.name} at {server.url}"
    keys = ", ".join(dict.fromkeys(vendor.key_variable for vendor in vendors() if vendor.key_variable))
    places = ", ".join(servers) or "nowhere: local_servers is empty"
    raise UsageError(
        f"--model auto found no model: none of {keys} is set, and no local server with a model answers (looked at {places}). "
        "Set a key, start a server, or name one: --model openai-compatible:NAME@http://host/v1"
    )


def find_servers(urls: Sequence[str]) -> list[Server]:
    """What listens at each of ``urls``, all asked at once. Takes at most about a second."""
    jobs = {url: (lambda url=url: look_at(f"{url}/v1", name=LOCAL_SERVERS.get(url, "server"), timeout_s=_LOCAL_S)) for url in urls}
    missing = {url: Server(url, LOCAL_SERVERS.get(url, "server"), None, (), "no answer in time") for url in urls}
    return [server._replace(url=url) for url, server in at_once(jobs, missing, timeout_s=2 * _LOCAL_S).items()]


def look_at(base_url: str, *, name: str, timeout_s: float, headers: Mapping[str, str] | None = None) -> Server:
    """Ask ``base_url`` for its models, without a proxy, as the providers do. Never raises for what the other side does."""
    parts = urlsplit(base_url)
    made = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    try:
        connection = made(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            query = f"?{parts.query}" if parts.query else ""
            connection.request("GET", f"{parts.path.rstrip('/')}/models{query}", headers=dict(headers or {}))
            reply = connection.getresponse()
            return Server(base_url, name, reply.status, _names(reply.read(_LIST_BYTES_MAX)))
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        return Server(base_url, name, None, (), str(error) or type(error).__name__)


def at_once(jobs: Mapping[K, Callable[[], T]], missing: Mapping[K, T], *, timeout_s: float) -> dict[K, T]:
    """Run ``jobs`` in threads that nobody waits for beyond ``timeout_s`` (a name's look-up has no time limit of its own)."""
    done: queue.Queue[tuple[K, T]] = queue.Queue()

    def do(key: K, job: Callable[[], T]) -> None:
        done.put((key, job()))

    for key, job in jobs.items():
        threading.Thread(target=do, args=(key, job), daemon=True).start()
    found = dict(missing)
    for _ in jobs:
        try:
            key, value = done.get(timeout=timeout_s)
        except queue.Empty:
            break
        found[key] = value
    return found


def _names(body: bytes) -> tuple[str, ...]:
    try:
        value: Any = json.loads(body)
    except ValueError:
        return ()
    listed: Any = cast("dict[str, Any]", value).get("data") if isinstance(value, dict) else None
    if not isinstance(listed, list):
        return ()
    entries = [cast("dict[str, Any]", entry) for entry in cast("list[Any]", listed) if isinstance(entry, dict)]
    return tuple(name for entry in entries if isinstance(name := entry.get("id"), str) and name.isprintable())
