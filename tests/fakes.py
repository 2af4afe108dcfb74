"""Stand-ins for the outside world, used by unit tests only: real classes, no patching."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from holdfast.act.api import ApiError


class FakeApi:
    """An API server in memory: objects by path, resourceVersions, conflicts, and scripted failures.

    Apply patches replace what the same manager applied before, well enough for tests that count writes.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.fail_with: Exception | None = None
        self._version = 0

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: dict[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        self.requests.append((method, path, dict(query or {}), copy.deepcopy(body)))
        if self.fail_with is not None:
            raise self.fail_with
        result: dict[str, Any] = getattr(self, f"_{method.lower()}")(path, body)
        return copy.deepcopy(result)

    def put_object(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Store an object as if somebody had written it, with a new resourceVersion."""
        self._version += 1
        stored = copy.deepcopy(body)
        stored.setdefault("metadata", {})["resourceVersion"] = str(self._version)
        self.objects[path] = stored
        return stored

    def writes(self) -> list[tuple[str, str]]:
        """Every request that was no read, as (method, path)."""
        return [(method, path) for method, path, _, _ in self.requests if method != "GET"]

    def _get(self, path: str, _: Any) -> dict[str, Any]:
        base = path.removesuffix("/scale")
        if base not in self.objects:
            raise ApiError(404, f"{path} not found")
        return self.objects[base]

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        target = f"{path}/{body['metadata']['name']}"
        if target in self.objects:
            raise ApiError(409, f"{target} exists")
        return self.put_object(target, body)

    def _put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._check_version(path, body)
        return self.put_object(path, body)

    def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        base = path.removesuffix("/scale").removesuffix("/status")
        self._check_version(base, body)
        return self.put_object(base, _merged(self.objects.get(base, {}), body))

    def _delete(self, path: str, _: Any) -> dict[str, Any]:
        if self.objects.pop(path, None) is None:
            raise ApiError(404, f"{path} not found")
        return {}

    def _check_version(self, path: str, body: dict[str, Any]) -> None:
        expected = body.get("metadata", {}).get("resourceVersion")
        if expected is not None and path in self.objects:
            actual = self.objects[path]["metadata"]["resourceVersion"]
            if expected != actual:
                raise ApiError(409, f"{path}: {expected} is not {actual}")


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        result[key] = _merged(result.get(key) or {}, value) if isinstance(value, dict) else value
    return result


class ManualClock:
    """A clock that moves when told."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
