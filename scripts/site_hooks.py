"""What MkDocs does beside the pages of docs/: the same text has to work on a code host and on the site.

The changelog, the contributing guide and the example desk live elsewhere in the project and become pages; example programs become
files. Links to them are led there. The phase diagram, which a code host draws from Mermaid, is drawn here as SVG, so
that no page needs a script from another host.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))

from phase_svg import drawn  # noqa: E402  # beside this file, which MkDocs loads by its path

# Pages that live elsewhere in the project: where on the site -> where in the project. Their own links are read from there.
HOME = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "desk.md": "examples/desk/README.md"}
# Where a link into the project leads. Any other file that a page links to is published as it is, below this folder.
ELSEWHERE = {source: name for name, source in HOME.items()} | {
    "README.md": "index.md",
    "docs/decisions": "decisions/README.md",
    "examples/desk": "desk.md",
}
PUBLISHED = "project"

_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^ *<!-- test: [^\n]*? -->\n", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that live outside docs/, and the files outside docs/ that any page links to."""
    sources = dict(HOME)
    pages = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    for name, path in [*pages.items(), *((name, ROOT / source) for name, source in HOME.items())]:
        for link in _LINK.finditer(_FENCE.sub("", path.read_text(encoding="utf-8"))):
            source = _source(link[2], _folder(name))
            if source not in ELSEWHERE and not source.startswith("docs/") and (ROOT / source).is_file():
                sources[f"{PUBLISHED}/{source}"] = source
    for name, source in sources.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to where their targets are on the site, draw the diagram, and leave out the tests' marks."""
    here = page.file.src_uri
    folder = _folder(here)
    markdown = _MARK.sub("", markdown)
    markdown = _MERMAID.sub(lambda match: drawn(match[1]), markdown)
    parts: list[str] = []
    at = 0
    for fence in _FENCE.finditer(markdown):
        parts += [_led(markdown[at : fence.start()], here, folder), fence[0]]
        at = fence.end()
    return "".join([*parts, _led(markdown[at:], here, folder)])


def _led(text: str, here: str, folder: str) -> str:
    return _LINK.sub(lambda match: match[1] + _target(match[2], here, folder) + (match[3] or "") + match[4], text)


def _folder(page: str) -> str:
    """The folder of the project that a page's own links are relative to."""
    return posixpath.dirname(HOME.get(page, f"docs/{page}"))


def _source(link: str, folder: str) -> str:
    """The path in the project that a link means; nothing for one that leads to another host."""
    return "" if re.match(r"[a-z]+:", link) else posixpath.normpath(posixpath.join(folder, link))


def _target(link: str, here: str, folder: str) -> str:
    source = _source(link, folder)
    if not source:
        return link
    target = ELSEWHERE.get(source) or (source.removeprefix("docs/") if source.startswith("docs/") else f"{PUBLISHED}/{source}")
    if target.startswith(f"{PUBLISHED}/") and not (ROOT / source).is_file():
        raise PluginError(f"{here}: {link} leads to no file of the project; a folder needs a page in ELSEWHERE (scripts/site_hooks.py)")
    return posixpath.relpath(target, posixpath.dirname(here) or ".")
