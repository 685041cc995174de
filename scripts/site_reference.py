"""A griffe extension: what a docstring says of a parameter or a field becomes an item of a list.

Our docstrings are prose in which ``name: what it is`` begins a sentence. Rendered as one paragraph that is hard to find one's
place in. Only names that the object really has are set out, so that prose with a colon stays prose.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

# "name: ", "one and two: " or "one, two: ", where a line or a sentence begins.
_SUBJECT = re.compile(r"(?:^|(?<=[.;)] ))((?:\w+(?:, | and ))*\w+): (?=\S)", re.MULTILINE)


class SetOutNames(griffe.Extension):
    """Rewrites the docstring of each class and function in place."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called once for the package, when all of it has been read."""
        self._walk(pkg)

    def _walk(self, owner: Any) -> None:
        for member in owner.members.values():
            if member.is_alias:
                continue
            if (member.is_class or member.is_function or member.is_module) and member.docstring is not None:
                member.docstring.value = set_out(member.docstring.value, _names(member))
            if member.is_class:
                _add_fields(member)
            if member.is_class or member.is_module:
                self._walk(member)


def _add_fields(member: Any) -> None:
    """Below the docstring of a class of data: its fields with types and defaults, or its values. Those that have a docstring of their
    own are shown with it."""
    attributes = [one for one in member.members.values() if one.is_attribute and not one.name.startswith("_")]
    fields = [one for one in attributes if one.docstring is None]
    bases = {str(base).split(".")[-1] for base in member.bases}
    if member.docstring is None or not fields:
        return
    if "Enum" in bases:
        rows = ["| value | as stored |", "|---|---|", *(f"| `{one.name}` | `{one.value}` |" for one in attributes)]
    elif "Struct" in bases or any("dataclass" in str(one.value) for one in member.decorators):
        known = [one for one in fields if one.annotation is not None]
        rows = ["| field | type | default |", "|---|---|---|"]
        rows += [f"| `{one.name}` | `{one.annotation}` | {f'`{one.value}`' if one.value is not None else 'required'} |" for one in known]
    else:
        return
    member.docstring.value += "\n\n" + "\n".join(rows)


def _names(member: Any) -> frozenset[str]:
    names = {parameter.name for parameter in member.parameters} if member.is_function else set[str]()
    if member.is_class:
        names |= set(member.members)
        init = member.members.get("__init__")
        if init is not None and init.is_function:
            names |= {parameter.name for parameter in init.parameters}
    return frozenset(names - {"self", "cls"})


def set_out(text: str, names: frozenset[str]) -> str:
    """``text`` with each paragraph's ``name: ...`` parts as the items of a list."""
    return "\n\n".join(_paragraph(part, names) for part in text.replace("``", "`").split("\n\n") if part.strip() != "::")


def _paragraph(text: str, names: frozenset[str]) -> str:
    found = [match for match in _SUBJECT.finditer(text) if set(re.split(r", | and ", match[1])) <= names]
    if not found or text.startswith("    "):
        return text
    ends = [*(match.start() for match in found[1:]), len(text)]
    items = [
        f"- {' and '.join(f'**`{name}`**' for name in re.split(r', | and ', match[1]))}: {' '.join(text[match.end() : end].split())}"
        for match, end in zip(found, ends, strict=True)
    ]
    head = text[: found[0].start()].rstrip()
    return "\n\n".join(filter(None, [head, "\n".join(items)]))
