"""`holdfast explain`: why a service has the size it has: inputs, candidates, guards and reason of a decision.

The newest decision, a hold included, is asked of the leading operator through the API server's pod proxy. Who may not
do that, or has no operator running, gets the last change from status; a past one comes from its Event, which also holds
what it was made from: with that the decision is made again, by the code that explains it.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Iterable, Mapping

from holdfast.act.api import ApiError, ApiPort, ApiUnreachable
from holdfast.act.events import DECISION_ANNOTATION, RECORD_ANNOTATION
from holdfast.api.llmservice import KIND
from holdfast.api.quantities import counted
from holdfast.cli import reading
from holdfast.cli.reading import Body
from holdfast.cli.terminal import printable
from holdfast.control.status import decision_record, replay
from holdfast.control.status.explanation import explained
from holdfast.control.status.report import iso
from holdfast.page.model import finite

_GONE = "no Event of a change before that time exists; clusters keep Events for one hour by default (--event-ttl)"


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; 1 where there is no decision to explain."""

    async def work(api: ApiPort) -> int:
        lines, found = await explanation(api, arguments)
        print("\n".join(lines))
        return 0 if found else 1

    return reading.read("explain", arguments, work)


async def explanation(api: ApiPort, arguments: argparse.Namespace) -> tuple[list[str], bool]:
    """Return the lines that are printed, and whether there is a decision to explain."""
    before, _, name = arguments.name.rpartition("/")
    namespace = before or arguments.namespace
    operator = reading.Operator(arguments.operator_namespace, arguments.lease_name, arguments.operator_port)
    service = await api.request("GET", reading.services_path(namespace, name))
    events = await _events(api, namespace, name)
    decision, source = await _decision(api, service, events, arguments.at, operator)
    told = history(events, arguments.at)
    again, why = ({}, "") if arguments.at is None else made_again(events, arguments.at)
    if arguments.json:
        whole = {"decision": decision, "source": source, "status": service.get("status", {}), "events": told}
        if arguments.at is not None:
            whole |= {"decidedAgain": again or None, "notDecidedAgainBecause": why or None}
        return [json.dumps(finite(whole), allow_nan=False)], bool(decision)
    now = present(service) if arguments.at is None else []
    lines = [*now, *_shown(decision, source), *_compared(decision, again, why), "", *_told(told)]
    return [printable(line) for line in lines], bool(decision)


async def _events(api: ApiPort, namespace: str, name: str) -> list[Body]:
    selector = f"involvedObject.kind={KIND},involvedObject.name={name}"
    answer = await api.request("GET", f"/api/v1/namespaces/{namespace}/events", query={"fieldSelector": selector})
    found: list[Body] = answer.get("items", [])
    return found


async def _decision(
    api: ApiPort, service: Body, events: list[Body], at: datetime.datetime | None, operator: reading.Operator
) -> tuple[Body, str]:
    """Return the decision that is asked for, and where it comes from in words."""
    if at is not None:
        past = past_decision(events, at)
        return (past, "the change before that time") if past else ({}, _GONE)
    meta = service["metadata"]
    try:
        return await operator.ask(api, f"decisions/{meta['namespace']}/{meta['name']}"), "now"
    except (ApiError, ApiUnreachable) as error:
        return service.get("status", {}).get("lastDecision", {}), (
            f"the last change; no newer decision of the operator: {error}"
        )


def past_decision(events: Iterable[Body], at: datetime.datetime) -> Body:
    """Return the newest decision up to a time, from the Events of changes."""
    try:
        decision = json.loads(_notes(events, at).get(DECISION_ANNOTATION, "{}"))
    except (ValueError, RecursionError):  # anybody who may make Events may write anything there
        return {}
    return decision if isinstance(decision, dict) else {}


def made_again(events: Iterable[Body], at: datetime.datetime) -> tuple[Body, str]:
    """Return what this code decides from the same inputs and memory, or nothing and why not."""
    notes = _notes(events, at)
    if not notes:
        return {}, _GONE
    text = notes.get(RECORD_ANNOTATION)
    if not text:
        return {}, "its Event has no decision record"
    try:
        made_from = decision_record.read(text)
    except decision_record.Unreadable as problem:
        return {}, str(problem)
    try:
        decision = replay.decided_again(made_from)
    except Exception as problem:  # of values that no operator ever had
        return {}, f"this version cannot replay the record: {type(problem).__name__}"
    if decision is None:
        return {}, "this version would not have made a decision yet"
    shown: Body = explained(decision.verdict, decision, iso(made_from.snapshot.now)).to_dict()
    return shown, ""


def _notes(events: Iterable[Body], at: datetime.datetime) -> Mapping[str, str]:
    """Return the annotations of the newest change up to a time."""
    limit, changes = _stamp(at), []
    for event in events:
        notes = event["metadata"].get("annotations") or {}
        if DECISION_ANNOTATION in notes and (when := event.get("lastTimestamp") or "") <= limit:
            changes.append((when, notes))
    return max(changes, key=lambda change: change[0], default=("", {}))[1]


def present(service: Body) -> list[str]:
    """Return what holds now, as lines."""
    status, slo = service.get("status", {}), service["spec"]["slo"]
    if not status.keys() - {"observedGeneration"}:  # the API server writes that one itself
        return ["no status yet; check that the operator runs", ""]
    seen, replicas = status.get("slo", {}), status.get("replicas", {})
    hardest = f" of class {seen['hardestClass']}, the hardest to keep," if "hardestClass" in seen else ""
    return [
        f"Objective   {slo.get('objective', '99%')} of requests with {_bounds(slo)}",
        f"Measured    attainment {seen.get('attainment', 'unknown')}{hardest} "
        f"over {seen.get('window', slo.get('window'))}, "
        f"budget remaining {seen.get('budgetRemaining', 'unknown')}, {seen.get('arrivalRps', '?')} req/s arriving",
        f"Replicas    {replicas.get('ready', 0)} ready, {replicas.get('starting', 0)} starting, "
        f"{replicas.get('draining', 0)} draining, {replicas.get('desired', 0)} wanted",
        *(
            f"Class       {each['name']}: attainment {each.get('attainment', 'unknown')} "
            f"of {each.get('requests', 0):g} requests, objective {each.get('objective', '?')}, "
            f"budget remaining {each.get('budgetRemaining', 'unknown')}"
            for each in seen.get("classes", ())
        ),
        *(
            f"Batch       {each['name']}: {_number(each, 'unfinished')} unfinished, "
            f"{_number(each, 'donePerMinute')} done per minute{_end(slo, each['name'])}"
            for each in seen.get("batch", ())
        ),
        *_front_ends(status.get("placements", ())),
        "",
        *(
            f"{condition['type']:<20}{condition['status']:<8}{condition['reason']}: {condition['message']}"
            for condition in status.get("conditions", ())
        ),
        "",
    ]


def _number(part: Body, name: str) -> str:
    return f"{part[name]:g}" if name in part else "unknown"


def _end(slo: Body, name: str) -> str:
    within = (each.get("finishWithin") for each in slo.get("classes", ()) if each.get("name") == name)
    return next((f", to be done within {each}" for each in within if each), "")


def _front_ends(placements: Iterable[Body]) -> list[str]:
    """What serves requests on each accelerator, and how late its answers are written."""
    said = ((each["accelerator"], each.get("engine", {})) for each in placements)
    unknown = "its lag is not known, because nothing in it reports when answers are written"
    return [
        f"Front end   {name}: {engine['frontEnd']}; "
        + (f"tokens are written within {engine['frontEndLag']}" if "frontEndLag" in engine else unknown)
        for name, engine in said
        if "frontEnd" in engine
    ]


def _bounds(slo: Body) -> str:
    """What makes a request a good one: E2E only where the service bounds it."""
    *others, last = [f"{name.upper()} <= {slo[name]}" for name in ("ttft", "tpot", "e2e") if slo.get(name)]
    return f"{', '.join(others)} and {last}"


def present_decision(decision: Body, source: str) -> list[str]:
    """Return one decision with all that is behind it, as lines."""
    if not decision:
        return [f"Decision    none ({source})"]
    lines = [
        f"Decision    {decision['action']}/{decision['reason']} ({source}, {decision['time']})",
        f"            {decision['message']}",
        *_present_inputs(decision.get("inputs", {})),
        *_present_candidates(decision.get("candidates", ())),
    ]
    if "inputs" in decision:
        lines += _block("Guards", decision.get("guards") or ["none"])
    recommendation = decision.get("recommendation")
    return [*lines, "", *present_decision(recommendation, "recommended")] if recommendation else lines


def _shown(decision: Body, source: str) -> list[str]:
    """The decision, or that it cannot be read: it may come from anybody, or from another version."""
    try:
        return present_decision(decision, source)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return [f"Decision    not readable ({source})"]


def _compared(decision: Body, again: Body, why: str) -> list[str]:
    """What this version would decide, if that can be compared with the recorded decision; else nothing."""
    if why:
        return [] if not decision else ["", f"Today       unknown: {why}"]
    if not again:
        return []
    if (again["action"], again["message"]) == (decision.get("action"), decision.get("message")):
        return ["", "Today       this version makes the same decision from the same inputs and memory"]
    return ["", *present_decision(again, "this version, from the same inputs and memory")]


def _present_inputs(inputs: Body) -> list[str]:
    if not inputs:
        return []
    share = inputs.get("quantile", "?")
    return _block(
        "Inputs",
        [
            f"arrivals    {inputs.get('arrivalRps', '?')} req/s",
            f"forecast    {inputs.get('forecastRps', '?')} req/s: quantile {share} of the load in the lead time",
            f"lead time   {inputs.get('leadTime', '?')} from a change of load to a replica that serves it",
            f"backlog     {inputs.get('backlogRequests', '?')} requests queued beyond what slo.ttft allows",
            f"capacity    {inputs.get('perReplicaRps', '?')} req/s per {inputs.get('accelerator', '')} replica, "
            f"bound by {inputs.get('boundBy', '?')}",
            *([f"            from {inputs['capacitySource']}"] if "capacitySource" in inputs else []),
            *([_learned(inputs)] if "learnedGain" in inputs else []),
            f"wanted      {counted(inputs.get('wantedReplicas', '?'), 'replica')}, before guards",
        ],
    )


def _learned(inputs: Body) -> str:
    slowness = inputs.get("learnedSlowness", "?")
    return f"            learned from traffic: capacity x {inputs['learnedGain']}, step time x {slowness} of the model"


def _present_candidates(candidates: Iterable[Body]) -> list[str]:
    return _block(
        "Candidates",
        [
            f"{each['accelerator']}: {counted(each.get('replicas', 0), 'replica')} of "
            f"{each.get('perReplicaRps', '?')} req/s{_cost(each)}; "
            f"{'lost: ' + each['lostBecause'] if each.get('lostBecause') else 'taken'}"
            for each in candidates
        ],
    )


def _cost(candidate: Body) -> str:
    return f" for ${candidate['costPerHour']:.2f}/h" if "costPerHour" in candidate else ""


def _block(title: str, lines: list[str]) -> list[str]:
    return [f"{title if index == 0 else '':<12}{line}" for index, line in enumerate(lines)]


def history(events: list[Body], until: datetime.datetime | None) -> list[Body]:
    """Return time, reason and message of the Events up to a time, oldest first."""
    fields = {"time": "lastTimestamp", "reason": "reason", "message": "message"}
    told = [{name: str(event.get(field) or "") for name, field in fields.items()} for event in events]
    limit = None if until is None else _stamp(until)
    return sorted((item for item in told if limit is None or item["time"] <= limit), key=lambda item: item["time"])


def _told(events: list[Body]) -> list[str]:
    lines = [f"  {event['time']}  {event['reason']}: {event['message']}" for event in events]
    return ["Decisions and observations, newest last:", *lines] if lines else ["No Events exist."]


def _stamp(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
