"""`holdfast explain`: why a service has the size it has, from its status and its Events."""

from __future__ import annotations

import argparse
import datetime
import json
import sys

from holdfast.act.api import ApiPort
from holdfast.api.llmservice import KIND
from holdfast.cli import reading
from holdfast.cli.reading import Body


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "explain",
        help="the last or a past decision: what was measured, what was decided and why",
        epilog="example: holdfast explain -n prod chat",
    )
    parser.add_argument("name", help="name of the LLMService")
    parser.add_argument("--at", type=_time, default=None, help="the decisions up to this time (ISO 8601)")
    reading.add_connection(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation."""

    async def work(api: ApiPort) -> int:
        service = await api.request("GET", reading.services_path(arguments.namespace, arguments.name))
        selector = f"involvedObject.kind={KIND},involvedObject.name={arguments.name}"
        path = f"/api/v1/namespaces/{arguments.namespace}/events"
        events = (await api.request("GET", path, query={"fieldSelector": selector})).get("items", [])
        told = history(events, arguments.at)
        if arguments.json:
            print(json.dumps({"status": service.get("status", {}), "events": told}))
        else:
            print("\n".join([*present(service), "", "What was decided and seen, newest last:", *map(line, told)]))
        return 0

    return reading.read("explain", arguments.kubeconfig, work)


def present(service: Body) -> list[str]:
    """Return what holds now, as lines."""
    status, slo = service.get("status", {}), service["spec"]["slo"]
    if not status:
        print("holdfast explain: no status yet: is the operator running?", file=sys.stderr)
    seen, capacity = status.get("slo", {}), status.get("capacity", {})
    replicas, decision = status.get("replicas", {}), status.get("lastDecision", {})
    return [
        f"Objective   {slo['objective']} of requests with TTFT <= {slo['ttft']} and TPOT <= {slo['tpot']}",
        f"Measured    attainment {seen.get('attainment', 'unknown')} over {seen.get('window', slo['window'])}, "
        f"budget left {seen.get('budgetRemaining', 'unknown')}, {seen.get('arrivalRps', '?')} req/s arriving",
        f"Capacity    {capacity.get('perReplicaRps', '?')} req/s per replica, bound by {capacity.get('boundBy', '?')}",
        f"Replicas    {replicas.get('ready', 0)} ready, {replicas.get('starting', 0)} starting, "
        f"{replicas.get('draining', 0)} draining, {replicas.get('desired', 0)} wanted",
        f"Decision    {decision.get('action', 'none')}/{decision.get('reason', '')}: {decision.get('message', '')}",
        *(
            f"{condition['type']:<22}{condition['status']:<8}{condition['reason']}: {condition['message']}"
            for condition in status.get("conditions", ())
        ),
    ]


def history(events: list[Body], until: datetime.datetime | None) -> list[Body]:
    """Return time, reason and message of the Events up to a time, oldest first."""
    told = [
        {"time": event.get("lastTimestamp") or "", "reason": event["reason"], "message": event["message"]}
        for event in events
    ]
    limit = None if until is None else until.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return sorted((item for item in told if limit is None or item["time"] <= limit), key=lambda item: item["time"])


def line(event: Body) -> str:
    return f"  {event['time']}  {event['reason']}: {event['message']}"


def _time(text: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write it as 2026-01-31T12:00:00Z") from None
