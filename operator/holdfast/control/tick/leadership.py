"""Exactly one leader writes: our own election on a coordination.k8s.io Lease.

kubernetes.aio's elector keeps leading when the connection drops, so it cannot be used. Here any failed renewal
counts against a monotonic deadline, and leadership ends `renew_deadline` before the Lease itself runs out.
"""

from __future__ import annotations

import asyncio
import datetime
import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.act.api import ApiError, ApiPort, ApiUnreachable, Body

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds; retry < renew_deadline < duration, so that a leader stops before another candidate may start."""

    duration_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The Lease as read, and since when (own monotonic clock) it has looked like this.

    The other side's timestamps are never compared with our clock: a Lease is expired when WE saw no change for
    its whole duration.
    """

    holder: str
    renewals: str
    unchanged_since: float


class LeaseStep(enum.Enum):
    ACQUIRE = "acquire"
    RENEW = "renew"
    WAIT = "wait"
    LOST = "lost"


def next_step(
    lease: LeaseView | None, identity: str, renewed_at: float | None, now: float, timing: LeaseTiming
) -> LeaseStep:
    """Decide what to do with the Lease.

    | leading | holder  | our last renewal | step    |
    | yes     | other   | any              | LOST    |
    | yes     | any     | too old          | LOST    |
    | yes     | we/none | recent           | RENEW   |
    | no      | none/we | -                | ACQUIRE |
    | no      | other   | unchanged long   | ACQUIRE |
    | no      | other   | changing         | WAIT    |
    """
    if renewed_at is not None:
        expired = now - renewed_at >= timing.renew_deadline_seconds
        taken = lease is not None and lease.holder not in ("", identity)
        return LeaseStep.LOST if expired or taken else LeaseStep.RENEW
    if lease is None or lease.holder in ("", identity):
        return LeaseStep.ACQUIRE
    return LeaseStep.ACQUIRE if now - lease.unchanged_since >= timing.duration_seconds else LeaseStep.WAIT


class LeadershipLost(Exception):
    """Raised into the task group: the process ends at once rather than write without the Lease."""


class Elector:
    """Keeps one Lease; `leading` is safe to ask before every write."""

    def __init__(
        self,
        api: ApiPort,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._timing = timing
        self._monotonic = monotonic
        self._wall = wall
        self._renewed_at: float | None = None
        self._seen: LeaseView | None = None
        self._acquired = asyncio.Event()

    @property
    def leading(self) -> bool:
        """Whether a write that starts now ends before another candidate may lead."""
        margin = self._timing.retry_seconds
        return (
            self._renewed_at is not None
            and self._monotonic() - self._renewed_at < self._timing.renew_deadline_seconds - margin
        )

    async def acquired(self) -> None:
        """Wait until this process leads."""
        await self._acquired.wait()

    async def run(self) -> None:
        """Acquire, then renew until cancelled; raises LeadershipLost, releases the Lease on the way out."""
        try:
            while True:
                await self._round_in_time()
                await asyncio.sleep(self.pause_seconds())
        finally:
            await asyncio.shield(self._release())

    def pause_seconds(self) -> float:
        """Return the time until the next read; a waiting candidate reads again when the Lease expires."""
        retry = self._timing.retry_seconds
        if self._renewed_at is not None or self._seen is None:
            return retry
        remaining = self._seen.unchanged_since + self._timing.duration_seconds - self._monotonic()
        return min(retry, remaining) if remaining > 0.0 else retry

    async def _round_in_time(self) -> None:
        """A leader does not wait for an answer beyond its own deadline: another may lead soon after."""
        patience = None
        if self._renewed_at is not None:
            patience = max(0.0, self._renewed_at + self._timing.renew_deadline_seconds - self._monotonic())
        try:
            async with asyncio.timeout(patience):
                await self._round()
        except TimeoutError:
            self._renewed_at = None
            raise LeadershipLost(f"lease {self._name}: the API server did not answer in time") from None

    async def _round(self) -> None:
        body = await self._read()
        step = next_step(self._seen, self._identity, self._renewed_at, self._monotonic(), self._timing)
        if step is LeaseStep.LOST:
            self._renewed_at = None
            raise LeadershipLost(f"lease {self._name}: not renewed in time, or acquired by {_holder(self._seen)}")
        if step is not LeaseStep.WAIT and body is not None:
            await self._write(body, step)

    async def _read(self) -> Body | None:
        """Read the Lease, an empty dict if there is none, None if the API server did not answer."""
        try:
            body = await self._api.request("GET", f"{self._path}/{self._name}")
        except ApiError as error:
            if error.status != 404:
                _LOG.warning("reading the lease failed: %s", error)
                return None
            # `_seen` stays: the holder of a deleted Lease still leads until the Lease would have expired.
            return {}
        except ApiUnreachable as error:
            _LOG.warning("reading the lease failed: %s", error)
            return None
        self._notice(body.get("spec", {}))
        return body

    def _notice(self, spec: dict[str, Any]) -> None:
        holder, renewals = spec.get("holderIdentity") or "", str(spec.get("renewTime"))
        if self._seen is None or (self._seen.holder, self._seen.renewals) != (holder, renewals):
            self._seen = LeaseView(holder, renewals, self._monotonic())

    async def _write(self, body: Body, step: LeaseStep) -> None:
        started_at = self._monotonic()
        try:
            if body:
                # PUT with the resourceVersion just read: of two candidates only one can win.
                await self._api.request("PUT", f"{self._path}/{self._name}", body=self._claimed(body, step))
            else:
                await self._api.request("POST", self._path, body=self._claimed(self._new_lease(), step))
        except (ApiError, ApiUnreachable) as error:
            _LOG.warning("lease not %sd: %s", step.value, error)
            return
        self._renewed_at = started_at
        if step is LeaseStep.ACQUIRE:
            _LOG.info("this process leads as %s", self._identity)
            self._acquired.set()

    def _new_lease(self) -> Body:
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}

    def _claimed(self, body: Body, step: LeaseStep) -> Body:
        spec = dict(body.get("spec", {}))
        now = self._stamp()
        if step is LeaseStep.ACQUIRE:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec.update(
            holderIdentity=self._identity, renewTime=now, leaseDurationSeconds=int(self._timing.duration_seconds)
        )
        return {**body, "spec": spec}

    async def _release(self) -> None:
        if self._renewed_at is None:
            return
        self._renewed_at = None
        body = await self._read()
        if not body or _holder(self._seen) != self._identity:
            return
        body["spec"] = {**body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._stamp()}
        try:
            await self._api.request("PUT", f"{self._path}/{self._name}", body=body)
        except (ApiError, ApiUnreachable) as error:
            _LOG.warning("releasing the lease failed: %s", error)

    def _stamp(self) -> str:
        moment = datetime.datetime.fromtimestamp(self._wall(), datetime.UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _holder(lease: LeaseView | None) -> str:
    return lease.holder if lease else ""
