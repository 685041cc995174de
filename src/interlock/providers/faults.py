"""What went wrong on the model's side, as ProviderError: HTTP statuses, error bodies, Retry-After. No I/O.

Providers never retry; ``retryable`` and ``retry_after_s`` are what the machine decides by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from ..errors import ProviderError
from ..messages import clean

__all__ = ["error_object", "http_error", "retry_after", "retryable_status"]

# Long enough for a validation error that lists fields; an HTML page of a proxy is cut.
MESSAGE_CHARS_MAX = 2_000

_RETRYABLE = frozenset({408, 409, 425, 429})

_HINT = {
    401: "check the API key",
    403: "check what the API key may use",
    404: "check base_url and the model's name",
    413: "the request is too large for this provider",
}

# Words in an error's type or code that no repetition of the same request can cure. Sources: the error references of
# OpenAI, Anthropic, Groq and Google, whose words agree in substance. What is not listed is worth another attempt.
_HOPELESS = (
    "invalid_request",
    "invalid_argument",
    "invalid_api_key",
    "badrequest",
    "bad_request",
    "authentication",
    "unauthenticated",
    "permission",
    "not_found",
    "context_length",
    "insufficient_quota",
    "billing",
    "content_policy",
    "content_filter",
    "unsupported",
    "failed_precondition",
    "model_decommissioned",
    "tool_use_failed",
    "request_too_large",
    "spend_limit_reached",
    # OpenAI Responses: the codes of a response's error (openai.types.responses.ResponseError)
    "invalid_prompt",
    "invalid_image",
    "invalid_base64",
    "image_",
    "empty_image",
)

# A 429 for an account without credit does not pass by waiting (OpenAI's error reference; Anthropic's SDK, RateLimitError).
_NO_CREDIT = frozenset({
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "enforced_spend_limit_reached",
    "contract_spend_limit_reached",
})  # fmt: skip


def retryable_status(status: int) -> bool:
    """Whether a request that was answered with ``status`` may succeed later. 529 is "overloaded" (Anthropic)."""
    return status in _RETRYABLE or 500 <= status <= 599


def http_error(status: int, headers: Mapping[str, str], body: bytes, *, url: str, keyless: bool = False) -> ProviderError:
    """The error for an HTTP status other than 2xx. The body's own message is included, capped.

    headers: looked up by names in lower case, as a case-insensitive mapping or one of such names allows.
    keyless: no API key was sent, which a 401 should say.
    """
    details = _details(_json(body))
    message = details.message or _plain(body)
    if 300 <= status < 400:
        message = f"redirected to {headers.get('location', 'nowhere')}, which is not followed; check base_url"
    hint = "no API key was sent: pass api_key=" if keyless and status == 401 else _HINT.get(status)
    text = f"{url} answered HTTP {status}" + (f": {_capped(message)}" if message else "") + (f" ({hint})" if hint else "")
    retryable = retryable_status(status) and details.code not in _NO_CREDIT
    wait = retry_after(headers)
    return ProviderError(
        text,
        retryable=retryable,
        retry_after_s=details.retry_after_s if wait is None else wait,
        status=status,
        kind="http",
        code=details.code or details.type,
    )


def error_object(value: Any, *, where: str = "the response") -> ProviderError:
    """The error for an error object inside an HTTP 200, in whatever form the vendor gives it.

    A numeric code in 400-599 is taken for the status and decides; without one the type's and the code's words do.
    """
    details = _details(value)
    if details.status is not None:
        retryable = retryable_status(details.status) and details.code not in _NO_CREDIT
    else:
        words = f"{details.type} {details.code}".lower()
        retryable = not any(word in words for word in _HOPELESS)
    named = ", ".join(part for part in (str(details.status or ""), details.code or details.type or "") if part)
    message = f"{where} is an error" + (f" ({named})" if named else "") + f": {_capped(details.message or 'no message')}"
    return ProviderError(
        message,
        retryable=retryable,
        retry_after_s=details.retry_after_s,
        status=details.status,
        kind="error_object",
        code=details.code or details.type,
    )


def retry_after(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """How long the provider asks to wait, in seconds; 0.0 for a date that has passed, None if it does not say.

    ``retry-after-ms`` (OpenAI, Azure) goes first; ``Retry-After`` is seconds or an HTTP date (RFC 9110, 10.2.3).
    Garbage is None. There is no cap here: the caller compares with its own bound.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(0.0, number) if number < float("inf") else None  # NaN fails the comparison too


class _Details:
    """What an error body says, read from whichever of the known places it uses."""

    __slots__ = ("code", "message", "retry_after_s", "status", "type")

    def __init__(
        self,
        message: str = "",
        type: str | None = None,
        code: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.message = message
        self.type = type
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s


def _details(value: Any) -> _Details:
    if isinstance(value, list) and value:
        # Google's OpenAI-compatible endpoint wraps the object into an array.
        value = cast("list[Any]", value)[0]
    if isinstance(value, str):
        return _Details(message=value)
    if not isinstance(value, dict):
        return _Details()
    error = cast("dict[str, Any]", value)
    inner = error.get("error")
    if isinstance(inner, (dict, list)) and inner:
        return _details(cast("Any", inner))
    message = _first_text(error, "message", "detail", "msg", "error_description", "error") or ""
    metadata = error.get("metadata")
    if isinstance(metadata, dict):
        # OpenRouter: the upstream provider's own words, which say more than "Provider returned error".
        raw = cast("dict[str, Any]", metadata).get("raw")
        message += f" [{raw}]" if isinstance(raw, str) and raw else ""
    code = error.get("code")
    numbers = (code, error.get("status"), error.get("status_code"), error.get("http_status_code"))
    status = next((number for number in map(_status, numbers) if number is not None), None)
    word = code if isinstance(code, str) and _status(code) is None else None
    more = error.get("details")
    if word is None and isinstance(more, dict):
        word = _first_text(cast("dict[str, Any]", more), "error_code")  # Anthropic: what exactly, beside the type
    kind = _first_text(error, "type", "status")
    return _Details(message=message, type=kind, code=word, status=status, retry_after_s=_retry_info(error.get("details")))


def _retry_info(details: Any) -> float | None:
    """Google says in the body how long to wait: ``google.rpc.RetryInfo``, with a duration such as ``34.07s`` (google.aip.dev/193)."""
    for detail in cast("list[Any]", details) if isinstance(details, list) else ():
        delay = cast("dict[str, Any]", detail).get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and delay.endswith("s"):
            return _number(delay[:-1])
    return None


def _status(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:4])
    return value if isinstance(value, int) and 400 <= value <= 599 else None


def _first_text(value: dict[str, Any], *names: str) -> str | None:
    for name in names:
        found = value.get(name)
        if isinstance(found, str) and found:
            return found
        if name == "detail" and found:
            return json.dumps(found, ensure_ascii=False, default=str)  # FastAPI's list of validation errors
    return None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _plain(body: bytes) -> str:
    return body.decode("utf-8", "replace").strip()


def _capped(message: str) -> str:
    message = clean(message)
    return message if len(message) <= MESSAGE_CHARS_MAX else message[:MESSAGE_CHARS_MAX] + "…"
