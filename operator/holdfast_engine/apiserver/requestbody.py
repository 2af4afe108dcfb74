"""What a client has sent, taken in before anything is decided: its size and its age are facts then."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class RequestBody(NamedTuple):
    """What came of a request, `is_whole` unless its client hung up, and where vLLM receives it again."""

    receive: Receive
    size_bytes: int
    is_whole: bool


async def take_in(receive: Receive) -> RequestBody:
    """Wait for the end of a request.

    vLLM itself reads a request as a whole before it looks into it: nothing waits longer, and no more is held.
    """
    messages: deque[Message] = deque()
    size_bytes, more, message = 0, True, Message()
    while more:
        message = await receive()
        messages.append(message)
        size_bytes += len(message.get("body", b""))
        more = message.get("more_body", False)

    async def receive_again() -> Message:
        return messages.popleft() if messages else await receive()

    return RequestBody(receive_again, size_bytes, message["type"] == "http.request")
