"""`holdfast explain` against an API server in memory: the leader's answer, else status; Events for the past."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from holdfast.act.api import ApiError, ApiPort
from holdfast.act.events import DECISION_ANNOTATION, RECORD_ANNOTATION, event_body
from holdfast.cli import explain, main
from holdfast.cli.reading import Operator
from holdfast.control.status.decision_record import record_of, written
from holdfast.control.status.explanation import explained
from holdfast.domain.service import ServiceKey
from holdfast.policy.capacity_request import Allocation
from holdfast.policy.decide import decide, decide_alone
from holdfast.policy.memory import FleetContext, Memory, ServiceMemory
from holdfast.policy.settings import PolicySettings
from tests.builders import ServiceView, a_snapshot, accelerator, replicas, service, traffic

LEASE = "/apis/coordination.k8s.io/v1/namespaces/holdfast-system/leases/holdfast"
DECISIONS = "/api/v1/namespaces/holdfast-system/pods/holdfast-5f-x:8080/proxy/decisions/prod/chat"
SERVICE = "/apis/holdfast.dev/v1alpha1/namespaces/prod/llmservices/chat"
EVENTS = "/api/v1/namespaces/prod/events"
CHANGE = {
    "time": "2026-11-01T10:00:00Z",
    "action": "ScaleUp",
    "reason": "ForecastAboveCapacity",
    "message": "29.0 req/s forecast (quantile 0.97) in the next 45 s; 2 -> 4 replicas",
    "inputs": {
        "arrivalRps": 26.1,
        "forecastRps": 29.0,
        "quantile": 0.9712,
        "leadTime": "45s",
        "backlogRequests": 0.0,
        "accelerator": "h100",
        "perReplicaRps": 8.9,
        "boundBy": "TPOT",
        "learnedGain": 1.08,
        "learnedSlowness": 0.97,
        "wantedReplicas": 4,
    },
    "candidates": [
        {"accelerator": "h100", "replicas": 4, "perReplicaRps": 8.9, "costPerHour": 11.8},
        {"accelerator": "l40s", "replicas": 10, "perReplicaRps": 3.0, "costPerHour": 15.0, "lostBecause": "dearer"},
    ],
}
HOLD = {**CHANGE, "action": "Hold", "reason": "DownHold", "guards": ["DownHold: fewer replicas must suffice for 75 s"]}


class Cluster:
    """Answers GETs by path; refuses what is not there."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            SERVICE: {
                "metadata": {"name": "chat", "namespace": "prod"},
                "spec": {"slo": {"ttft": "1s", "tpot": "50ms"}},
                "status": {"lastDecision": CHANGE, "replicas": {"ready": 4, "desired": 4}},
            },
            EVENTS: {"items": []},
            LEASE: {"spec": {"holderIdentity": "holdfast-5f-x_1"}},
            **answers,
        }
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "",
    ) -> dict[str, Any]:
        assert method == "GET"
        self.asked.append((path, dict(query or {})))
        if path not in self.answers:
            raise ApiError(404, f"{path} not found")
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        found: dict[str, Any] = answer
        return found


def arguments(*given: str) -> argparse.Namespace:
    return main.build_parser(("explain",)).parse_args(["explain", *given])


async def told(cluster: Cluster, *given: str) -> str:
    return "\n".join((await explain.explanation(cluster, arguments(*given)))[0])


def change(at: str, made_from: str = "", **more: Any) -> dict[str, Any]:
    now = datetime.datetime.fromisoformat(at).timestamp()
    return event_body(
        ServiceKey("prod", "chat"), "uid", reason="ForecastAboveCapacity", message="ScaleUp: because", warning=False,
        now=now, notes={DECISION_ANNOTATION: json.dumps({**CHANGE, "time": at, **more}), RECORD_ANNOTATION: made_from},
    )  # fmt: skip


async def test_the_leader_tells_of_the_newest_decision_also_when_it_is_a_hold() -> None:
    text = await told(Cluster(**{DECISIONS: HOLD}), "prod/chat")
    assert "Decision    Hold/DownHold (now, " in text
    assert "DownHold: fewer replicas must suffice for 75 s" in text


async def test_inputs_candidates_and_guards_are_told_with_their_units() -> None:
    text = await told(Cluster(**{DECISIONS: CHANGE}), "-n", "prod", "chat")
    for line in (
        "Objective   99% of requests with TTFT <= 1s and TPOT <= 50ms",
        "Inputs      arrivals    26.1 req/s",
        "            forecast    29.0 req/s: quantile 0.9712 of the load in the lead time",
        "            lead time   45s from a change of load to a replica that serves it",
        "            backlog     0.0 requests queued beyond what slo.ttft allows",
        "            capacity    8.9 req/s per h100 replica, bound by TPOT",
        "                        learned from traffic: capacity x 1.08, step time x 0.97 of the model",
        "            wanted      4 replicas, before guards",
        "Candidates  h100: 4 replicas of 8.9 req/s for $11.80/h; taken",
        "            l40s: 10 replicas of 3.0 req/s for $15.00/h; lost: dearer",
        "Guards      none",
    ):
        assert line in text.splitlines()


async def test_front_ends_are_told_with_their_lag_or_that_nobody_knows_it() -> None:
    engines = {"h100": {"frontEnd": "Python", "frontEndLag": "20ms"}, "l40s": {"frontEnd": "Rust"}, "a10": {}}
    cluster = Cluster()
    cluster.answers[SERVICE]["status"]["placements"] = [
        {"accelerator": name, "engine": engine} for name, engine in engines.items()
    ]
    lines = [line for line in (await told(cluster, "prod/chat")).splitlines() if line.startswith("Front end")]
    assert lines == [
        "Front end   h100: Python; tokens are written within 20ms",
        "Front end   l40s: Rust; its lag is not known, because nothing in it reports when answers are written",
    ]


async def test_one_replica_is_told_in_the_singular() -> None:
    one = {"accelerator": "h100", "replicas": 1, "perReplicaRps": 8.9}
    decision = {**CHANGE, "inputs": {"wantedReplicas": 1}, "candidates": [one]}
    lines = (await told(Cluster(**{DECISIONS: decision}), "-n", "prod", "chat")).splitlines()
    assert "            wanted      1 replica, before guards" in lines
    assert "Candidates  h100: 1 replica of 8.9 req/s; taken" in lines


@pytest.mark.parametrize(
    "answers",
    [
        {DECISIONS: ApiError(403, "pods/proxy is forbidden")},
        {DECISIONS: ApiError(404, "only the leader decides")},
        {LEASE: ApiError(403, "leases is forbidden")},
        {LEASE: {"spec": {"holderIdentity": ""}}},
        {LEASE: {}},
    ],
    ids=["no proxy", "no decision yet", "no lease", "nobody leads", "empty lease"],
)
async def test_without_the_leader_the_last_change_comes_from_status(answers: dict[str, Any]) -> None:
    text = await told(Cluster(**answers), "prod/chat")
    assert "Decision    ScaleUp/ForecastAboveCapacity (the last change; no newer decision of the operator: " in text


@pytest.mark.parametrize("status", [{}, {"status": {"observedGeneration": -1}}], ids=["no status", "as created"])
async def test_a_service_nobody_looked_at_yet_says_so(status: dict[str, Any]) -> None:
    spec = {"slo": {"ttft": "1s", "tpot": "50ms"}}
    bare = {"metadata": {"name": "chat", "namespace": "prod"}, "spec": spec, **status}
    text = await told(Cluster(**{SERVICE: bare}), "prod/chat")
    assert "no status yet; check that the operator runs" in text
    assert "Decision    none" in text


async def test_a_bound_on_the_whole_answer_is_told_where_the_service_has_one() -> None:
    bounded = {
        "metadata": {"name": "chat", "namespace": "prod"},
        "spec": {"slo": {"ttft": "1s", "tpot": "50ms", "e2e": "20s"}},
        "status": {"lastDecision": CHANGE},
    }
    text = await told(Cluster(**{SERVICE: bounded}), "prod/chat")
    assert "Objective   99% of requests with TTFT <= 1s, TPOT <= 50ms and E2E <= 20s" in text.splitlines()


async def test_a_past_decision_is_told_from_its_event_and_later_ones_are_left_out() -> None:
    events = [
        change("2026-11-01T09:00:00Z", message="first"),
        change("2026-11-01T10:00:00Z", message="second"),
        change("2026-11-01T11:00:00Z", message="third"),
    ]
    cluster = Cluster(**{EVENTS: {"items": events}})
    text = await told(cluster, "prod/chat", "--at", "2026-11-01T11:30:00+01:00")
    assert "            second" in text.splitlines()
    assert "Candidates  h100" in text
    assert "11:00:00Z" not in text
    assert not any("proxy" in path for path, _ in cluster.asked)
    early = await told(cluster, "prod/chat", "--at", "2026-11-01T08:00:00Z")
    assert "no Event of a change before that time exists" in early


async def at_nine(made_from: str, **more: Any) -> str:
    cluster = Cluster(**{EVENTS: {"items": [change("2026-11-01T09:00:00Z", made_from, **more)]}})
    return await told(cluster, "prod/chat", "--at", "2026-11-01T10:00:00Z")


async def test_a_past_decision_is_made_again_from_what_it_was_made_from() -> None:
    view = ServiceView(service().with_accelerators(accelerator("h100")), traffic(5.0), replicas(2))
    snapshot = a_snapshot(view)
    (decision,), _ = decide(snapshot, Memory(), PolicySettings())
    made_from = written(record_of(decision.key, snapshot, Memory(), PolicySettings(), FleetContext()))
    other = await at_nine(made_from)
    assert f"{decision.verdict.action.value}/{decision.verdict.reason} (this version, from the same inputs" in other
    same = explained(decision.verdict, decision, "2026-11-01T09:00:00Z").to_dict()
    assert "this version makes the same decision from the same inputs and memory" in await at_nine(made_from, **same)


async def test_a_past_decision_among_competing_services_is_made_again_with_its_allocation() -> None:
    view = ServiceView(service().with_accelerators(accelerator("h100")), traffic(5.0), replicas(2))
    context = FleetContext(Allocation(1, "2 wanted, 1 left for priority 0, GPUs went to prod/other (priority 10)"))
    snapshot = a_snapshot(view)
    decision, _ = decide_alone(snapshot, ServiceMemory(), context)
    assert decision is not None
    made_from = written(record_of(decision.key, snapshot, Memory(), PolicySettings(), context))
    text = await at_nine(made_from)
    assert "ScaleDown/CapacityLimited (this version, from the same inputs and memory" in text
    assert "GPUs went to prod/other (priority 10)" in text
    same = explained(decision.verdict, decision, "2026-11-01T09:00:00Z").to_dict()
    assert "this version makes the same decision from the same inputs and memory" in await at_nine(made_from, **same)


@pytest.mark.parametrize(
    ("made_from", "why"),
    [("", "its Event has no decision record"), ("%", "not a decision record: ")],
)
async def test_why_a_past_decision_cannot_be_made_again_is_told(made_from: str, why: str) -> None:
    text = await at_nine(made_from)
    assert f"Today       unknown: {why}" in text
    assert "Candidates  h100" in text


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], "no Event of a change before that time exists"),
        ([change("2026-11-01T11:00:00Z")], "no Event of a change before that time exists"),
        ([change("2026-11-01T09:00:00Z")], "its Event has no decision record"),
        ([change("2026-11-01T09:00:00Z", "%")], "not a decision record: "),
    ],
    ids=["no Event", "a later one", "no record", "no such record"],
)
async def test_machines_get_why_a_past_decision_is_not_made_again(events: list[dict[str, Any]], why: str) -> None:
    cluster = Cluster(**{EVENTS: {"items": events}})
    whole = json.loads(await told(cluster, "prod/chat", "--at", "2026-11-01T10:00:00Z", "--json"))
    assert whole["decidedAgain"] is None
    assert whole["notDecidedAgainBecause"].startswith(why)


@pytest.mark.parametrize(
    ("at", "code"), [((), 0), (("--at", "2026-11-01T10:00:00Z"), 0), (("--at", "2026-11-01T08:00:00Z"), 1)]
)
@pytest.mark.parametrize("json_wanted", [(), ("--json",)], ids=["text", "json"])
def test_no_decision_to_explain_is_exit_1(
    at: tuple[str, ...], code: int, json_wanted: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(**{EVENTS: {"items": [change("2026-11-01T09:00:00Z")]}})

    def with_cluster(command: str, kubeconfig: object, work: Callable[[ApiPort], Coroutine[Any, Any, int]]) -> int:
        return asyncio.run(work(cluster))

    monkeypatch.setattr("holdfast.cli.reading.read", with_cluster)
    assert main.main(["explain", "prod/chat", *at, *json_wanted]) == code


async def test_machines_get_no_nan_where_an_event_holds_one() -> None:
    event = change("2026-11-01T09:00:00Z", "%")
    event["metadata"]["annotations"][DECISION_ANNOTATION] = '{"inputs": {"forecastRps": NaN}}'
    text = await told(Cluster(**{EVENTS: {"items": [event]}}), "prod/chat", "--at", "2026-11-01T10:00:00Z", "--json")
    assert json.loads(text, parse_constant=pytest.fail)["decision"] == {"inputs": {"forecastRps": None}}


@pytest.mark.parametrize(
    "note", ["{", "[]", '"x"', "1" * 5000, "[" * 100_000, '{"action": 1}', '{"action": "Hold", "reason": []}']
)
async def test_whatever_stands_in_the_annotation_of_an_event_the_rest_is_told(note: str) -> None:
    event = change("2026-11-01T09:00:00Z", "%")
    event["metadata"]["annotations"][DECISION_ANNOTATION] = note
    text = await told(Cluster(**{EVENTS: {"items": [event]}}), "prod/chat", "--at", "2026-11-01T10:00:00Z")
    assert "Decision    no" in text
    assert "ForecastAboveCapacity: ScaleUp: because" in text


async def test_a_record_that_no_operator_ever_had_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("holdfast.control.status.decision_record.read", lambda _: None)
    monkeypatch.setattr("holdfast.control.status.replay.decided_again", fail)
    assert "Today       unknown: this version cannot replay the record: ZeroDivisionError" in await at_nine("any")


async def test_what_others_write_moves_no_cursor_and_makes_no_lines() -> None:
    forged = {**change("2026-11-01T09:00:00Z"), "message": "\x1b[2J\x1b]0;x\x07calm\nDecision    Hold\u202e\x9b"}
    text = await told(Cluster(**{EVENTS: {"items": [forged]}}), "prod/chat")
    assert text.replace("\n", "").isprintable()
    assert not any(line.startswith("Decision    Hold") for line in text.splitlines())


async def test_an_event_that_says_nothing_is_told_as_that() -> None:
    event = change("2026-11-01T09:00:00Z")
    del event["message"], event["reason"]
    assert "2026-11-01T09:00:00Z  : " in await told(Cluster(**{EVENTS: {"items": [event]}}), "prod/chat")


async def test_events_without_a_decision_are_history_only() -> None:
    plain = change("2026-11-01T09:00:00Z")
    del plain["metadata"]["annotations"]
    assert explain.past_decision([plain], datetime.datetime.now(datetime.UTC)) == {}
    assert "ForecastAboveCapacity: ScaleUp: because" in await told(Cluster(**{EVENTS: {"items": [plain]}}), "prod/chat")


async def test_what_is_only_recommended_is_shown_with_its_inputs() -> None:
    plain = {key: CHANGE[key] for key in ("time", "action", "reason", "message")}
    text = await told(Cluster(**{DECISIONS: {**plain, "recommendation": CHANGE}}), "prod/chat")
    assert "(recommended, " in text
    assert text.count("Candidates") == 1


async def test_machines_get_all_of_it() -> None:
    whole = json.loads(await told(Cluster(**{DECISIONS: HOLD}), "prod/chat", "--json"))
    assert whole["decision"] == HOLD
    assert whole["source"] == "now"
    assert whole["status"]["lastDecision"] == CHANGE


async def test_the_operator_is_found_by_its_lease_whatever_its_names() -> None:
    cluster = Cluster(
        **{
            "/apis/coordination.k8s.io/v1/namespaces/ai/leases/shard-1": {"spec": {"holderIdentity": "hf_2-x_17"}},
            "/api/v1/namespaces/ai/pods/hf_2-x:9090/proxy/x": {"ok": True},
        }
    )
    assert await Operator("ai", "shard-1", 9090).ask(cluster, "x") == {"ok": True}


@pytest.mark.parametrize("time", ["yesterday", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_a_time_that_is_none_is_refused_with_an_example(time: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_code:
        arguments("chat", "--at", time)
    assert exit_code.value.code == 2
    assert "2026-01-31T12:00:00Z" in capsys.readouterr().err


def test_a_time_without_a_zone_is_the_reader_s_own() -> None:
    assert arguments("chat", "--at", "2026-11-01T10:00:00").at.tzinfo is None
    assert explain.past_decision([change("2000-01-01T00:00:00Z")], arguments("chat", "--at", "2026-11-01T10:00:00").at)


def test_the_annotation_belongs_to_our_group() -> None:
    assert DECISION_ANNOTATION.startswith("holdfast.dev/")


@pytest.mark.parametrize("name", ["", "/", "prod/", "/chat", "a/b/c", "../../nodes"])
def test_what_names_no_service_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["explain", name])
    assert "give NAME or NAMESPACE/NAME" in capsys.readouterr().err


def test_the_class_that_is_hardest_to_keep_is_named_with_the_budget_of_each() -> None:
    premium = {
        "name": "premium",
        "objective": "99.9%",
        "attainment": "99%",
        "budgetRemaining": "-900%",
        "requests": 9e3,
    }
    seen = {"attainment": "99%", "budgetRemaining": "-900%", "window": "1h", "hardestClass": "premium"}
    status = {"slo": seen | {"classes": [premium | {"requests": 9e3}, {"name": "bulk", "objective": "90%"}]}}
    lines = explain.present({"spec": {"slo": {"ttft": "1s", "tpot": "50ms"}}, "status": status})
    assert any("attainment 99% of class premium, the hardest to keep, over 1h" in line for line in lines)
    assert "Class       premium: attainment 99% of 9000 requests, objective 99.9%, budget remaining -900%" in lines
    assert "Class       bulk: attainment unknown of 0 requests, objective 90%, budget remaining unknown" in lines


def test_batch_work_is_told_with_the_time_that_it_has() -> None:
    classes = [{"name": "nightly", "kind": "Batch", "finishWithin": "8h"}, {"name": "rest", "kind": "Batch"}]
    batch = [{"name": "nightly", "unfinished": 120.0, "donePerMinute": 30.0}, {"name": "rest"}]
    spec = {"slo": {"ttft": "1s", "tpot": "50ms", "classes": classes}}
    lines = explain.present({"spec": spec, "status": {"slo": {"batch": batch}}})
    assert "Batch       nightly: 120 unfinished, 30 done per minute, to be done within 8h" in lines
    assert "Batch       rest: unknown unfinished, unknown done per minute" in lines
