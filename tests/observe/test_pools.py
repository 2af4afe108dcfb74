"""Pools of one service: what their pods and series say of them, and what is asked about them."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast.domain.engine import ExactCounts
from holdfast.domain.service import ServiceKey, key_of
from holdfast.domain.signals import ClassTraffic
from holdfast.observe.series import queries
from holdfast.observe.series.samples import Sample, service_key
from holdfast.observe.signals import traffic
from holdfast.observe.signals.slow_queries import SlowSignals
from tests.observe.observe_builders import NOW, SLO, WINDOW, answers, ready, request, sample
from tests.observe.test_cluster_view import Cluster, service
from tests.observe.test_mapping import deployment, pod

CHAT = ServiceKey("prod", "chat")
PREFILL = ServiceKey("prod", "chat", "prefill")
PREMIUM = {"class": "premium"}


@pytest.mark.parametrize(("key", "label"), [(CHAT, "chat"), (PREFILL, "chat.prefill")])
def test_a_label_tells_the_service_and_the_pool(key: ServiceKey, label: str) -> None:
    assert key.label == label
    assert key.labels == ("prod", label)
    assert str(key) == f"prod/{label}"
    assert key_of("prod", label) == key
    assert service_key(Sample({"namespace": "prod", "holdfast_service": label}, 1.0)) == key


def test_the_pool_that_answers_is_the_service_and_comes_before_its_others() -> None:
    assert ServiceKey("prod", "chat", "") == CHAT
    assert sorted([ServiceKey("prod", "code"), PREFILL, CHAT]) == [CHAT, PREFILL, ServiceKey("prod", "code")]


def test_a_query_about_a_service_asks_for_no_series_of_its_other_pool() -> None:
    query = queries.Query("waiting", lambda engines: engines.read("vllm:num_requests_waiting"))
    assert 'holdfast_service=~"chat"' in queries.narrowed(query, [CHAT]).promql
    assert 'holdfast_service=~"chat\\\\.prefill"' in queries.narrowed(query, [PREFILL]).promql


OBJECTIVES = {"ttft_seconds": "0.5", "tpot_seconds": "0.03"}


def of_pool(label: str, **counts: float) -> list[Sample]:
    """What engines of a pool with the plugin count, by the names of `ExactCounts`."""
    own = {"holdfast_service": label}
    told = [sample(1.0, metric="objective", name=name, seconds=text, **own) for name, text in OBJECTIVES.items()]
    told += [sample(3.0, metric=metric, **own) for metric in ("covered", "client_times")]
    for name, value in counts.items():
        bad = name.startswith("bad_")
        metric = "requests_bad_total" if bad else f"requests_{name}_total"
        told.append(sample(value, metric=metric, **own, **({"cause": name[4:]} if bad else {})))
    return told


def test_requests_of_a_killed_engine_are_bad_and_failed_and_no_sign_of_a_sick_one() -> None:
    found = judged(of_pool("chat", good=90.0, bad_killed=6.0, bad_error=1.0, bad_ttft=3.0), [])
    assert found is not None
    assert (found.bad, found.late, found.bad_error, found.bad_killed) == (10.0, 3.0, 1.0, 6.0)


def judged(replicas: list[Sample], prefill: list[Sample], *pools: ServiceKey) -> ExactCounts | None:
    """The exact counts of a service of these pools."""
    found = answers(engines=[sample(NOW - 3, pod="chat-0")], plugins=[*replicas, *prefill])
    asked = dataclasses.replace(request(ready("chat-0")), pools=pools)
    seen = traffic.assemble([asked], found, SlowSignals(), WINDOW, NOW)[CHAT]
    return dict(seen.by_accelerator)["h100"].exact


def test_a_request_that_two_engines_serve_counts_once_and_one_that_ends_at_the_first_counts_too() -> None:
    replicas = of_pool("chat", arrived=80.0, good=75.0, bad_ttft=5.0)
    prefill = of_pool("chat.prefill", arrived=90.0, handed_over=80.0, bad_rejected=6.0, bad_error=3.0, withdrawn=1.0)
    assert judged(replicas, prefill, PREFILL) == ExactCounts(
        arrived=90.0, good=75.0, bad_ttft=5.0, bad_rejected=6.0, bad_error=3.0, withdrawn=1.0, engines=1
    )
    assert judged(replicas, prefill) == judged(replicas, [])


def test_a_request_that_is_handed_over_in_a_later_interval_counts_in_one_of_them() -> None:
    first = judged(of_pool("chat", arrived=0.0), of_pool("chat.prefill", arrived=3.0, handed_over=0.0), PREFILL)
    later = judged(of_pool("chat", arrived=3.0), of_pool("chat.prefill", arrived=0.0, handed_over=3.0), PREFILL)
    assert first is not None
    assert later is not None
    assert (first.arrived, later.arrived) == (3.0, 0.0)


def test_a_hand_over_that_no_replica_has_counted_yet_makes_no_count_negative() -> None:
    found = judged(of_pool("chat", arrived=1.0), of_pool("chat.prefill", arrived=0.0, handed_over=3.0), PREFILL)
    assert found is not None
    assert found.arrived == 0.0


def test_a_prefill_pool_that_does_not_judge_all_of_its_requests_is_left_out() -> None:
    replicas, prefill = of_pool("chat", arrived=80.0), of_pool("chat.prefill", arrived=90.0, bad_error=9.0)
    uncovered = [row for row in prefill if row.label("metric") != "covered"]
    assert judged(replicas, uncovered, PREFILL) == judged(replicas, [])


def test_verdicts_of_both_pools_count_for_a_class() -> None:
    found = answers(
        engines=[sample(NOW - 3, pod="chat-0")],
        plugins=[
            *of_pool("chat"),
            *of_pool("chat.prefill"),
            sample(7.0, metric="requests_good_total", **PREMIUM),
            sample(2.0, metric="requests_bad_total", cause="rejected", holdfast_service="chat.prefill", **PREMIUM),
        ],
    )
    premium = dataclasses.replace(SLO, name="premium")
    asked = request(ready("chat-0"), slo=dataclasses.replace(SLO, classes=(premium,)))
    asked = dataclasses.replace(asked, pools=(PREFILL,))
    seen = traffic.assemble([asked], found, SlowSignals(), WINDOW, NOW)[CHAT]
    assert seen.classes == (ClassTraffic("premium", 7.0, 2.0),)


async def test_pods_and_deployment_of_a_prefill_pool_are_no_replicas_of_the_service() -> None:
    world = Cluster()
    await world.start()
    await world.put("services", service(router={}, replicas=1, prefill={"replicas": 1}))
    labels = {"holdfast.dev/service": "chat.prefill", "holdfast.dev/accelerator": "h100"}
    engine, workload = pod(phase="Running"), deployment()
    engine["metadata"] |= {"name": "chat.prefill-h100-1", "uid": "uid-1", "labels": labels}
    workload["metadata"] |= {
        "name": "chat.prefill-h100",
        "uid": "uid-2",
        "labels": labels,
        "ownerReferences": [{"uid": "uid-chat", "controller": True}],
    }
    await world.put("pods", engine)
    await world.put("deployments", workload)
    (part,) = world.view.services()
    assert (part.replicas, part.deployed) == ((), ())
    assert part.prefill is not None
    assert [each.name for each in part.prefill.replicas] == ["chat.prefill-h100-1"]
    assert part.prefill.deployed is not None
    assert part.shown("Deployment", "chat.prefill-h100").uid == "uid-2"  # type: ignore[union-attr]
    assert world.view.services()[0] is part
    workload["metadata"]["ownerReferences"] = []
    await world.put("deployments", workload)
    assert world.view.services()[0].prefill.deployed is None  # type: ignore[union-attr]
