"""What the read-only commands share: one connection, one service or all, and errors in one line."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from holdfast.act.api import ApiError, ApiPort, ApiUnreachable, NoCluster, connect, default_namespace
from holdfast.api.llmservice import GROUP, PLURAL, VERSION
from holdfast.cli.terminal import said

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Operator:
    """Where the operator runs; the leader among its replicas is the holder of the Lease."""

    namespace: str
    lease_name: str
    port: int

    async def ask(self, api: ApiPort, path: str) -> Body:
        """GET a path of the leader's own endpoint through the API server; needs `get` on `pods/proxy` there."""
        lease = await api.request(
            "GET", f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{self.lease_name}"
        )
        # The holder is called after its host and process; a pod's host has the pod's name.
        pod = str(lease.get("spec", {}).get("holderIdentity") or "").rpartition("_")[0]
        if not pod:
            raise ApiUnreachable("no operator leads")
        return await api.request("GET", f"/api/v1/namespaces/{self.namespace}/pods/{pod}:{self.port}/proxy/{path}")


def read(command: str, arguments: argparse.Namespace, work: Callable[[ApiPort], Awaitable[int]]) -> int:
    """Run `work` with a connection; 1 with one line on standard error when the cluster says no or is not there."""
    if arguments.namespace is None:
        arguments.namespace = default_namespace(arguments.kubeconfig, arguments.context)

    async def connected() -> int:
        async with connect(arguments.kubeconfig, arguments.context) as api:
            try:
                return await work(api)
            except ApiError as error:
                raise Refused(f"{api.server} refuses it, {error}; {_remedy(error)}") from error

    try:
        return asyncio.run(connected())
    except ApiUnreachable as error:
        problem = f"{error}; check that the cluster runs and can be reached from here, or give another --context"
    except (Refused, NoCluster) as error:
        problem = str(error)
    return said(command, 1, problem)


class Refused(Exception):
    """The API server said no: who it is, what it said, and the remedy."""


def _remedy(error: ApiError) -> str:
    if error.status == 401:
        return "log in again, or give another --context"
    if error.status == 403:
        return "ask for this right, or give another --context"
    if error.status == 404 and "not find the requested resource" in error.message:
        return "install Holdfast, or its CRDs with: holdfast crd | kubectl apply -f -"
    if error.status == 404:
        return "check the name and --namespace; holdfast status -A lists all services"
    return "try again; if it stays, look at the log of the API server"


def services_path(namespace: str | None, name: str = "") -> str:
    """Return the path of one service, of a namespace's, or of all."""
    place = "" if namespace is None else f"/namespaces/{namespace}"
    return f"/apis/{GROUP}/{VERSION}{place}/{PLURAL}" + (f"/{name}" if name else "")
