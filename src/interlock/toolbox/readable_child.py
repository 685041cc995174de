"""The program of a process of its own that turns HTML into Markdown; see ``readable``. It imports nothing of ours.

stdin: one line of JSON (``base``: the URL that links are relative to; ``bytes_max``: of the output), then HTML in UTF-8.
stdout: one object of JSON, ``title`` and ``text``. argv: the directory that holds the library.
"""

import html
import json
import re
import sys

# What a page of a few MiB can need many times over; an endless one ends here.
MEMORY_BYTES_MAX = 2 * 1024**3
# A little more than it is waited for: it ends soon even if the process that waits was killed.
CPU_S_MAX = 12

_TITLE = re.compile(r"<title(?:\s[^<>]{0,200})?>([^<]{0,1000})", re.IGNORECASE)


def converted(page: str, *, base: str, bytes_max: int) -> dict[str, str]:
    """The Markdown of ``page`` and its title, without scripts, hidden parts and navigation; with it if there is nothing else."""
    from html_to_markdown import ConversionOptions, PreprocessingOptions, convert

    text = ""
    for preprocessing in (PreprocessingOptions(remove_forms=False), PreprocessingOptions(enabled=False)):
        options = ConversionOptions(
            base_url=base,
            bullets="-",
            compact_tables=True,  # otherwise one wide cell widens every row
            extract_metadata=False,
            inline_data_media="alt_text_only",
            preprocessing=preprocessing,
        )
        text = (convert(page, options).content or "").strip()
        if text:
            break
    title = _TITLE.search(page)
    shown = text.encode("utf-8", "replace")[:bytes_max].decode("utf-8", "ignore")
    return {"title": " ".join(html.unescape(title[1]).split()) if title else "", "text": shown}


def confine() -> None:
    """Bound this process, where the system can."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    except (ImportError, OSError, ValueError):
        pass


if __name__ == "__main__":
    confine()
    sys.path.insert(0, sys.argv[1])
    told = json.loads(sys.stdin.buffer.readline())
    result = converted(sys.stdin.buffer.read().decode("utf-8", "replace"), base=told["base"], bytes_max=told["bytes_max"])
    sys.stdout.buffer.write(json.dumps(result).encode())
