"""What secrets look like: a short list of formats that are told from other text at sight, each with its source.

Each begins with a text that its issuer chose so that it can be found, which is looked for first. No pattern has whitespace in it, and none
takes more than linear time: what can fail is bounded, what has no bound cannot fail. A password, or a random string such as the secret
half of an AWS key, has no format: declare it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Format(NamedTuple):
    """starts: one of them is in every match, at its beginning (or, of ``://``, before it)."""

    name: str
    starts: tuple[str, ...]
    pattern: re.Pattern[str]


def _format(name: str, starts: tuple[str, ...], pattern: str) -> Format:
    return Format(name, starts, re.compile(pattern, re.ASCII))


# "gitleaks" is the default configuration of gitleaks 8 (config/gitleaks.toml, MIT); lengths are the issuers' where they say them.
FORMATS: tuple[Format, ...] = (
    # docs.github.com, "About authentication to GitHub", token formats; gitleaks github-pat, -oauth, -app-token, -fine-grained-pat.
    _format("GitHub", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{36,255}"),
    _format("GitHub, fine-grained", ("github_pat_",), r"(?<![A-Za-z0-9])github_pat_[A-Za-z0-9_]{82,255}"),
    # docs.gitlab.com, "Token prefixes"; gitleaks gitlab-pat.
    _format("GitLab", ("glpat-",), r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_.-]{20,300}"),
    # docs.aws.amazon.com, IAM identifiers, unique prefixes: AKIA is an access key, ASIA a temporary one; gitleaks aws-access-token.
    _format("AWS", ("AKIA", "ASIA"), r"(?<![A-Za-z0-9])A[KS]IA[A-Z2-7]{16}(?![A-Za-z0-9])"),
    # cloud.google.com, "API keys"; gitleaks gcp-api-key.
    _format("Google", ("AIza",), r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    # OpenAI, Anthropic, DeepSeek, OpenRouter, ...; a digit is asked for, so that words with dashes stay.
    _format("a model provider", ("sk-",), r"(?<![A-Za-z0-9])sk-(?=[A-Za-z_-]{0,64}[0-9])[A-Za-z0-9_-]{20,}"),
    # docs.stripe.com, "API keys"; gitleaks stripe-access-token.
    _format(
        "Stripe",
        ("sk_live_", "sk_test_", "rk_live_", "rk_test_"),
        r"(?<![A-Za-z0-9])[rs]k_(?:live|test)_[A-Za-z0-9]{10,255}",
    ),
    # api.slack.com, "Token types"; gitleaks slack-bot-token, slack-user-token, slack-app-token, slack-webhook-url.
    _format(
        "Slack", ("xoxa-", "xoxb-", "xoxe-", "xoxp-", "xoxr-", "xoxs-", "xapp-"), r"(?<![A-Za-z0-9])x(?:ox[abeprs]|app)-[A-Za-z0-9-]{10,}"
    ),
    _format("Slack, webhook", ("hooks.slack.com/",), r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/_-]{20,}"),
    # gitleaks npm-access-token, pypi-upload-token, huggingface-access-token; each is documented by its registry.
    _format("npm", ("npm_",), r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    _format("PyPI", ("pypi-",), r"(?<![A-Za-z0-9])pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}"),
    _format("Hugging Face", ("hf_",), r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{34}(?![A-Za-z0-9])"),
    # RFC 7519: three base64url parts, the first two of which are JSON objects and begin with eyJ; gitleaks jwt.
    _format("JSON Web Token", ("eyJ",), r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{10,}"),
    # RFC 3986, 3.2.1: a password in a URL should not be shown.
    _format("a password in a URL", ("://",), r"(?<=://)([^\s/?#@:\"'<>\\]{0,128}:)[^\s/?#@\"'<>\\]{1,256}(?=@)"),
)

# RFC 7468, and the older forms that openssl and ssh-keygen write.
KEY_BEGIN, KEY_END, DASHES = "-----BEGIN ", "-----END ", "-----"
KEY_HEADER_MAX = 64
"""How far the dashes that end the line lie from those that begin it."""
_KEY_BODY = re.compile(r"[A-Za-z0-9+/=\s\\:,-]*")

STARTS: tuple[str, ...] = (*(start for format in FORMATS for start in format.starts), KEY_BEGIN)


def without_secrets(text: str, mask: str) -> str:
    """``text`` with what has one of the formats replaced by ``mask``."""
    if KEY_BEGIN in text:  # first: what stands right before a key would take its dashes for its own
        text = _without_keys(text, mask)
    for format in FORMATS:
        if any(start in text for start in format.starts):
            text = format.pattern.sub(lambda found: (found[1] if found.re.groups else "") + mask, text)
    return text


def keys_in(text: str) -> Iterator[tuple[int, int]]:
    """Where private keys begin and end; -1 for the end of one that is not there, and of what may become the beginning of one."""
    at, ends = 0, True
    while (start := text.find(KEY_BEGIN, at)) >= 0:
        at = start + len(KEY_BEGIN)
        header = text.find(DASHES, at, start + KEY_HEADER_MAX)
        if header < 0 and len(text) - start < KEY_HEADER_MAX:
            yield start, -1
        elif header >= 0 and "PRIVATE KEY" in text[start:header]:
            last = text.find(KEY_END, header) if ends else -1
            end = text.find(DASHES, last + len(KEY_END)) if last >= 0 else -1
            ends = end >= 0  # if this one does not end, nor does one behind it
            at = end + len(DASHES) if ends else at
            yield start, at if ends else -1


def _without_keys(text: str, mask: str) -> str:
    """Without private keys in PEM, one that was cut off included."""
    made: list[str] = []
    done = 0
    for start, end in keys_in(text):
        header = text.find(DASHES, start + len(KEY_BEGIN))
        if header < 0 or start < done:
            continue
        if end < 0:
            body = _KEY_BODY.match(text, header)
            end = body.end() if body is not None else header
        made += (text[done:start], mask)
        done = end
    return "".join((*made, text[done:])) if made else text
