"""What a docstring says of a function and of each of its arguments."""

from __future__ import annotations

import inspect
from typing import NamedTuple


class Documentation(NamedTuple):
    """description: for the model, without the argument section. arguments: by name."""

    description: str
    arguments: dict[str, str]


def read(docstring: str | None) -> Documentation:
    """Google, NumPy, reST and Epydoc docstrings. One that cannot be parsed is the description as it stands."""
    text = inspect.cleandoc(docstring or "").strip()
    if "\n" not in text:  # One line has no sections: the parser need not be loaded.
        return Documentation(text, {})
    import docstring_parser

    try:
        parsed = docstring_parser.parse(text)
        arguments = {param.arg_name: (param.description or "").strip() for param in parsed.params}
        parts = [parsed.short_description, parsed.long_description]
        if parsed.returns is not None and parsed.returns.description:
            parts.append(f"Returns: {parsed.returns.description}")
    except Exception:  # Other people's parser on other people's prose; all there is to lose is the layout.
        return Documentation(text, {})
    description = "\n\n".join(part.strip() for part in parts if part and part.strip())
    # NumPy allows `x, y : int`, and types may stand beside a name.
    split = {name.strip().lstrip("*"): text for names, text in arguments.items() for name in names.split(",")}
    return Documentation(description or text, split)
