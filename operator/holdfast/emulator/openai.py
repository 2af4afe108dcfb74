"""OpenAI's completion API as vLLM speaks it: what a request asks for, and the JSON of the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

WORD = " tok"
DEFAULT_COMPLETION_TOKENS = 16
DEFAULT_CHAT_TOKENS = 128
"""Answer lengths where a request names none: OpenAI's default, and an answer of usual length that ends by itself."""

PROMPT_TOKENS_HEADER = "Holdfast-Prompt-Tokens"
RETRY_AFTER_SECONDS = 1


class BadRequest(Exception):
    """A request that is refused, with the status and the error type vLLM gives."""

    def __init__(
        self,
        message: str,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
        param: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self._retry_after_seconds = retry_after_seconds or RETRY_AFTER_SECONDS

    @property
    def headers(self) -> dict[str, str]:
        """Every 503 says when to come again."""
        busy = self.status is HTTPStatus.SERVICE_UNAVAILABLE
        return {"Retry-After": str(self._retry_after_seconds)} if busy else {}

    def body(self) -> bytes:
        kinds = {HTTPStatus.BAD_REQUEST: "BadRequestError", HTTPStatus.NOT_FOUND: "NotFoundError"}
        kind = kinds.get(self.status, self.status.phrase)
        error = {"message": str(self), "type": kind, "param": self.param, "code": int(self.status)}
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What the engine needs to know of a request; lengths in tokens."""

    model: str
    chat: bool
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    ends_by_itself: bool
    stream: bool
    include_usage: bool
    extra_args: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None


def parse_request(body: bytes, headers: Mapping[str, str], *, chat: bool, max_model_len: int) -> CompletionRequest:
    """Read a request body; BadRequest says what is wrong with it."""
    try:
        given = json.loads(body)
    except ValueError:
        raise BadRequest("the body is no JSON") from None
    if not isinstance(given, dict):
        raise BadRequest("the body must be a JSON object")
    if given.get("n") not in (None, 1):
        raise BadRequest("only n = 1 is supported", param="n")
    prompt_tokens = _prompt_tokens(given, headers, chat=chat)
    if prompt_tokens >= max_model_len:
        raise BadRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt has "
            f"{prompt_tokens} tokens. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    max_tokens, ends_by_itself = _max_tokens(given, chat=chat, room=max_model_len - prompt_tokens)
    options = given.get("stream_options")
    return CompletionRequest(
        model=str(given.get("model") or ""),
        chat=chat,
        prompt_tokens=prompt_tokens,
        cached_tokens=min(_integer(given, "holdfast_cached_tokens", 0, 0) or 0, prompt_tokens - 1),
        max_tokens=max_tokens,
        ends_by_itself=ends_by_itself,
        stream=bool(given.get("stream")),
        include_usage=bool(options.get("include_usage")) if isinstance(options, dict) else False,
        extra_args=_object(given, "vllm_xargs"),
        kv_transfer_params=_object(given, "kv_transfer_params"),
    )


def _prompt_tokens(given: dict[str, Any], headers: Mapping[str, str], *, chat: bool) -> int:
    """Tokens of the prompt: as stated, else counted: ids exactly, text by its words."""
    stated = headers.get(PROMPT_TOKENS_HEADER)
    if stated is not None:
        if not stated.isascii() or not stated.isdigit() or int(stated) < 1:
            raise BadRequest(f"{PROMPT_TOKENS_HEADER} must be a whole number of at least 1")
        return int(stated)
    field = _integer(given, "holdfast_prompt_tokens", 1, None)
    if field is not None:
        return field
    return max(1, _chat_tokens(given.get("messages")) if chat else _text_tokens(given.get("prompt")))


def _chat_tokens(messages: object) -> int:
    """Words of all messages, and four tokens of template around each."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list of at least one message", param="messages")
    total = 0
    for message in messages:
        if not isinstance(message, dict):
            raise BadRequest("each message must be an object", param="messages")
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
        total += 4 + sum(len(text.split()) for text in texts)
    return total


def _text_tokens(prompt: object) -> int:
    if isinstance(prompt, str):
        return len(prompt.split())
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        return _text_tokens(prompt[0])
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return len(prompt)
    raise BadRequest("prompt must be a string, a list of token ids, or a list of one of these", param="prompt")


def _max_tokens(given: dict[str, Any], *, chat: bool, room: int) -> tuple[int, bool]:
    """Tokens to generate, and whether the answer ends by itself rather than at a limit the client set."""
    asked = _integer(given, "max_completion_tokens", 1, None) or _integer(given, "max_tokens", 1, None)
    if asked is None:
        return min(DEFAULT_CHAT_TOKENS if chat else DEFAULT_COMPLETION_TOKENS, room), chat
    if asked > room:
        raise BadRequest(
            f"max_tokens={asked} leaves no room: {room} tokens are left of the context", param="max_tokens"
        )
    return asked, False


def _object(given: dict[str, Any], name: str) -> dict[str, Any] | None:
    found = given.get(name)
    if found is not None and not isinstance(found, dict):
        raise BadRequest(f"{name} must be an object", param=name)
    return found


def _integer(given: dict[str, Any], name: str, least: int, default: int | None) -> int | None:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadRequest(f"{name} must be a whole number of at least {least}, got {value!r}", param=name)
    return value


@dataclass(frozen=True, slots=True)
class Completion:
    """The JSON of one answer; every chunk but the first and the last is the same bytes."""

    id: str
    created: int
    model: str
    request: CompletionRequest

    @property
    def finish_reason(self) -> str:
        return "stop" if self.request.ends_by_itself else "length"

    def first_event(self) -> bytes:
        """What a chat stream sends before its first token."""
        return self._event({"role": "assistant", "content": ""}, None) if self.request.chat else b""

    def token_event(self) -> bytes:
        """One token."""
        return self._event({"content": WORD} if self.request.chat else WORD, None)

    def last_events(self) -> bytes:
        """The last token, the usage if it was asked for, and the end mark."""
        last = self._event({"content": WORD} if self.request.chat else WORD, self.finish_reason)
        if self.request.include_usage:
            last += _event({**self._head(".chunk"), "choices": [], "usage": self.usage()})
        return last + b"data: [DONE]\n\n"

    def body(self, handed_over: dict[str, Any] | None = None) -> bytes:
        """The whole answer, for clients that do not stream, with parameters for a decode engine if there is one."""
        text = WORD * self.request.max_tokens
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": self.finish_reason,
            "stop_reason": None,
        }
        if self.request.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        told = {"kv_transfer_params": handed_over} if handed_over else {}
        return json.dumps({**self._head(""), "choices": [choice], "usage": self.usage(), **told}).encode()

    def usage(self) -> dict[str, int]:
        prompt, generated = self.request.prompt_tokens, self.request.max_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}

    def _event(self, content: object, finish_reason: str | None) -> bytes:
        key = "delta" if self.request.chat else "text"
        choice = {"index": 0, key: content, "logprobs": None, "finish_reason": finish_reason}
        return _event({**self._head(".chunk"), "choices": [choice]})

    def _head(self, suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if self.request.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
