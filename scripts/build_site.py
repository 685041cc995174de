#!/usr/bin/env python
"""Build the documentation site: strictly, without network, and so that its pages need none.

python scripts/build_site.py             into site/
python scripts/build_site.py FOLDER      into FOLDER

Exits 1 if MkDocs warns of anything (a dead link, a dead anchor, a page without a place, a name that the reference cannot find),
if anything asks for the network while it builds, or if a built page would load something from another host.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NETWORK = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"})
# What a browser fetches by itself. A link to somewhere else (<a href>) is the reader's own choice.
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|object|embed)\b[^>]*?\b(?:src|data|srcset)=[\"']?((?:https?:)?//[^\s\"'>]+)"
    r"|<link\b(?![^>]*\brel=[\"']?(?:canonical|prev|next))[^>]*?\bhref=[\"']?((?:https?:)?//[^\s\"'>]+)"
    r"|@import\s+(?:url\()?[\"']?((?:https?:)?//[^\s\"')]+)"
    r"|url\([\"']?((?:https?:)?//[^\s\"')]+)"
)


def refuse_the_network(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: Python calls it before each such act, whoever does it."""
    if event in NETWORK:
        raise PermissionError(f"the site must build without network, and something asked for it: {event} {arguments!r}")


def build(folder: Path) -> list[str]:
    """Build into ``folder``. Returns what MkDocs and Python warned of."""
    from mkdocs.commands.build import build as mkdocs_build
    from mkdocs.config import load_config
    from mkdocs.exceptions import MkDocsException

    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(f"{record.name}: {record.getMessage()}")

    for name in ("mkdocs", "griffe", "py.warnings"):
        logging.getLogger(name).addHandler(Keep(logging.WARNING))
    logging.captureWarnings(True)
    warnings.simplefilter("default")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    try:
        config.plugins.on_startup(command="build", dirty=False)
        mkdocs_build(config)
    except (MkDocsException, SystemExit) as error:
        said.append(f"mkdocs: {error}")
    finally:
        config.plugins.on_shutdown()
    return said


def fetched_from_elsewhere(folder: Path) -> list[str]:
    """Everything that a browser would fetch from another host while it shows the site."""
    found: list[str] = []
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".html", ".css"}:
            text = path.read_text(encoding="utf-8")
            found += [f"{path.relative_to(folder)}: {next(filter(None, match.groups()))}" for match in _FETCHED.finditer(text)]
            if 'class="mermaid"' in text:
                found.append(f"{path.relative_to(folder)}: a Mermaid diagram, for which the theme fetches a script")
    return found


def main(arguments: list[str]) -> int:
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # the theme's advice on MkDocs 2, which pyproject.toml keeps out
    sys.addaudithook(refuse_the_network)
    folder = Path(arguments[0]).resolve() if arguments else ROOT / "site"
    problems = [*build(folder), *(fetched_from_elsewhere(folder) if folder.exists() else ["nothing was built"])]
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{sum(1 for _ in folder.rglob('*.html'))} pages in {folder}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
