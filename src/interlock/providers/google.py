"""Google's Gemini models, over ``generateContent`` and ``streamGenerateContent``."""

from __future__ import annotations

from functools import partial
from typing import Unpack
from urllib.parse import urlsplit

from ..errors import UsageError
from ._wire import Endpoint, WireModel, WireOptions, base_url_of, check_stream
from .google_reply import GoogleReply
from .google_request import GoogleRequestWriter

__all__ = ["GoogleModel"]

# The variables are those of Google's own SDK (google-genai, _api_client.py and _base_url.py), in its order.
_GOOGLE = Endpoint(
    url="https://generativelanguage.googleapis.com",
    url_variable="GOOGLE_GEMINI_BASE_URL",
    key_variables=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    key_header="x-goog-api-key",
    key_prefix="",
)


class GoogleModel(WireModel):
    """A Gemini model. One instance serves many sessions and event loops.

    name: ``gemini-...``, or a resource such as ``tunedModels/NAME``. The generation in it decides what is sent: a model whose
        name has none counts as one of generation 3.
    base_url: default ``GOOGLE_GEMINI_BASE_URL``, or Google itself. One without a path gets ``/v1beta``.
    api_key: sent as ``x-goog-api-key``; default: what ``GOOGLE_API_KEY`` or ``GEMINI_API_KEY`` holds.
    key_variable: another variable, which must then be set; None means that no key is needed.
    stream: whether to ask for a stream. Either way, what the server answers with is read as what it is.
    thoughts: whether to ask for summaries of the model's thoughts, which are shown as reasoning. A model that does not think refuses it.
    options: headers, timeouts and the like, see ``WireOptions``.

    ``ModelSettings.extra`` is merged into the body field by field; its ``tools`` (``[{"googleSearch": {}}]``) precede the functions.
    ``reasoning_effort`` is a thinking budget up to Gemini 2.5 and a thinking level from 3 on. There is no switch against
    parallel calls: ``parallel_tool_calls=False`` is a UsageError.

    Raises UsageError if a key is needed and missing, or a value makes no sense.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        key_variable: str | None = "",
        stream: bool = True,
        thoughts: bool = False,
        **options: Unpack[WireOptions],
    ) -> None:
        check_stream(stream)
        if not isinstance(thoughts, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"thoughts must be True or False, not {thoughts!r}")
        if "?" in str(name) or "#" in str(name):
            raise UsageError(f"a model's name is a part of the address and has no '?' and no '#': {name!r}")
        url, _ = base_url_of(_GOOGLE, base_url)
        version = "" if urlsplit(url).path.strip("/") else "/v1beta"
        writer = GoogleRequestWriter(str(name), version=version, stream=stream, thoughts=thoughts)
        self.native_output = writer.native_output
        super().__init__(
            name,
            endpoint=_GOOGLE,
            writer=writer,
            reply=partial(GoogleReply, name),
            base_url=base_url,
            api_key=api_key,
            key_variable=key_variable,
            **options,
        )
