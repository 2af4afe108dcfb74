"""The words of a shell script, with the variables that it says itself or that its container has. Pure.

What cannot be known without running the script stays as it stands, with its `$`: never a guess.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

COMMAND_ENDS = re.compile(r"[;&|()]+|\n")
"""A word that ends a command; `&` sends it to the background."""

_SUBSTITUTION = re.compile(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`")
_UNKNOWN = "$_"
_VARIABLE = re.compile(r"\$\{(?P<braced>\w+)(?:(?P<colon>:?)(?P<operator>[-=+?])(?P<word>[^{}]*))?\}|\$(?P<plain>\w+)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPENING, _CLOSING = frozenset({"if", "case", "for", "while", "until"}), frozenset({"fi", "esac", "done"})
_BEFORE_COMMANDS = frozenset({"then", "else", "elif", "do", "{", "!", *_OPENING})
_BEFORE_ASSIGNMENTS = frozenset({"export", "readonly", "declare", "local", "typeset", "env"})
_TESTS = frozenset({"[", "[[", "test"})
_MOST_EXPANSIONS = 16


def script_words(script: str, variables: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the words of a script, with `;` at the end of each line.

    A variable that is None has a value from elsewhere. An assignment counts from there on. One that depends on a
    condition makes the variable unknown.
    """
    known = dict(variables)
    reader = _Reader(known)
    for line in script.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        for word in _split(_SUBSTITUTION.sub(_UNKNOWN, line)):
            yield from reader.read(word)
        yield from reader.read(";")


class _Reader:
    """Reads the words of a script in their order."""

    def __init__(self, known: dict[str, str | None]) -> None:
        self._known = known
        self._depth = 0
        self._command = ""
        self._depends = False

    def read(self, word: str) -> list[str]:
        """Return a word with its variables filled in, as the words that it becomes."""
        if COMMAND_ENDS.fullmatch(word):
            self._depends = word in ("&&", "||") and (self._command in _TESTS or self._depends)
            self._command = ""
            return [word]
        filled = expanded(word, self._known)
        assigned = None if self._command else _ASSIGNMENT.fullmatch(filled)
        if assigned:
            self._assign(assigned[1], assigned[2])
        elif not self._command and word not in _BEFORE_ASSIGNMENTS:
            self._depth += (word in _OPENING) - (word in _CLOSING)
            self._command = "" if word in _BEFORE_COMMANDS else word
        return filled.split() if word.startswith("$") else [filled]

    def _assign(self, name: str, value: str) -> None:
        if self._depth > 0:
            self._known[name] = None
        elif self._depends:
            self._known.setdefault(name, None)
        else:
            self._known[name] = value


def expanded(word: str, known: dict[str, str | None]) -> str:
    """A word with the variables that are known, and the defaults of variables that nothing sets."""
    for _ in range(_MOST_EXPANSIONS):
        filled = _VARIABLE.sub(lambda found: _value(found, known), word)
        if filled == word or len(filled) > 65536:
            break
        word = filled
    return word


def _value(found: re.Match[str], known: dict[str, str | None]) -> str:
    name, operator, default = found["braced"] or found["plain"], found["operator"], found["word"] or ""
    value = known.get(name, "" if operator else None)
    if value is None:
        return found[0]
    is_set = name in known and (value != "" or not found["colon"])
    if operator == "+":
        return default if is_set else ""
    if is_set or operator is None:
        return value
    if operator == "?":
        return found[0]
    if operator == "=":
        known[name] = default.strip("\"'")
    return default.strip("\"'")


def _split(line: str) -> list[str]:
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:  # a quotation that goes on in the next line
        return line.split()
