"""Who may look: by the name under which the page is asked for, and by a token where one is wanted."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
from collections.abc import Collection
from pathlib import Path

LEAST_TOKEN_CHARACTERS = 16
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d+)?")


def known_host(header: str, names: Collection[str]) -> bool:
    """Whether a Host header names this page: an address, localhost or one of `names`.

    A name that somebody else owns may point at this port too, and would let his page read ours in a visitor's browser.
    """
    found = _HOST.fullmatch(header.strip())
    name = found[1].strip("[]").rstrip(".").lower() if found else ""
    if name == "localhost" or name in {known.lower().rstrip(".") for known in names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Token:
    """A bearer token or password kept in a file, which is read at each look: who rotates it restarts nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def usable(self) -> bool:
        """Whether the file holds a token that is long enough not to be guessed."""
        return len(self._read()) >= LEAST_TOKEN_CHARACTERS

    def admits(self, authorization: str) -> bool:
        """Whether an Authorization header bears it; nobody is let in while the file says nothing usable."""
        wanted = self._read()
        return len(wanted) >= LEAST_TOKEN_CHARACTERS and hmac.compare_digest(wanted, _given(authorization))

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()[:4096].strip()
        except OSError:
            return b""


def _given(authorization: str) -> bytes:
    """What is given as `Bearer TOKEN`, or as the password of any user: browsers ask people for that."""
    scheme, _, value = authorization.partition(" ")
    text = value.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() == "bearer":
        return text
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(text, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
