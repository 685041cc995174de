#!/usr/bin/env python
"""Draw the machine's phases from its transition table, into docs/architecture.md.

python scripts/phase_diagram.py            write it
python scripts/phase_diagram.py --check    exit 1 if the page shows another one
"""

from __future__ import annotations

import sys
from pathlib import Path

from interlock.machine import TRANSITIONS, Phase

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
BEGIN = "<!-- phase diagram: drawn from the table by `make docs` -->"
END = "<!-- phase diagram: end -->"


def diagram() -> str:
    """The table as a Mermaid state diagram: one arrow per pair of phases, labelled with the records that lead along it.

    Records that never change the phase, wherever they are legal, are listed below the arrows instead.
    """
    edges: dict[tuple[Phase, Phase], list[str]] = {}
    moves: set[str] = set()
    legal_in: dict[str, list[Phase]] = {}
    for (phase, record), (_, targets) in TRANSITIONS.items():
        legal_in.setdefault(record.__name__, []).append(phase)
        for target in sorted(targets, key=_order):
            edges.setdefault((phase, target), []).append(record.__name__)
            if target is not phase:
                moves.add(record.__name__)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(Phase)).name}"]
    for (phase, target), records in sorted(edges.items(), key=lambda item: (_order(item[0][0]), _order(item[0][1]))):
        label = sorted(name for name in records if name in moves)
        if label:
            lines.append(f"    {phase.name} --> {target.name}: {', '.join(label)}")
    lines.append("```")
    still = sorted(name for name in legal_in if name not in moves)
    if still:
        lines += ["", "Legal, and never a change of phase:", ""]
        lines += [f"- `{name}` in {_phases(legal_in[name])}" for name in still]
    return "\n".join(lines)


def _order(phase: Phase) -> int:
    return list(Phase).index(phase)


def _phases(phases: list[Phase]) -> str:
    return "every phase" if set(phases) == set(Phase) else ", ".join(phase.name for phase in sorted(phases, key=_order))


def page_with(text: str, drawn: str) -> str:
    """``text`` with what stands between the two markers replaced by ``drawn``. Raises ValueError without the markers."""
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    return f"{head}{BEGIN}\n{drawn}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    fresh = page_with(text, diagram())
    if fresh == text:
        return 0
    if "--check" in arguments:
        print(f"{PAGE.name} shows another phase diagram than the table; run: make docs", file=sys.stderr)
        return 1
    PAGE.write_text(fresh, encoding="utf-8")
    print(f"{PAGE.name} redrawn")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
