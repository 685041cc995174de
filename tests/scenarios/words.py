"""The names, ids and texts of a scenario, as they are written or replaced by random ones: nothing may hang on a word."""

from __future__ import annotations

import random
import string

# What a vendor's ids and a model's prose may look like; the last have letters of two, three and four bytes.
_ID = string.ascii_letters + string.digits + "-_:|"
_LETTERS = string.ascii_lowercase + " " * 5 + "äßé→漢𝕏🙂\n"


class Words:
    """Everything as it is written."""

    def tool(self, name: str) -> str:
        return name

    def id(self, id: str) -> str:
        return id

    def text(self, text: str) -> str:
        return text


class RandomWords(Words):
    """The same word for the same word, different words for different ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._known: dict[tuple[str, str], str] = {}

    def tool(self, name: str) -> str:
        return self._replaced("tool", name, string.ascii_letters + string.digits + "_-", 64)

    def id(self, id: str) -> str:
        return self._replaced("id", id, _ID, 60) if id else id

    def text(self, text: str) -> str:
        if not text.strip():
            return text
        # The edges are letters: a blank there is a question of its own, and a scenario's.
        return self._replaced("text", text, _LETTERS, 80, edge=string.ascii_letters)

    def _replaced(self, kind: str, word: str, letters: str, length_max: int, edge: str = "") -> str:
        if (kind, word) not in self._known:
            chance = self._random
            made = "".join(chance.choices(letters, k=chance.randint(8, length_max)))
            if edge:
                made = chance.choice(edge) + made + chance.choice(edge)
            self._known[kind, word] = made
        return self._known[kind, word]
