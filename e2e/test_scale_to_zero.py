"""Scale to zero and back: the last replica goes, the next request waits for one, and none is lost or hidden.

python -m e2e.cluster run -- python -m pytest e2e/test_scale_to_zero.py -m cluster
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition
from e2e.load import verdict
from e2e.load.steady import SteadyLoad
from e2e.patience import patient
from holdfast.activator.upstream import GONE_SECONDS

pytestmark = pytest.mark.cluster

_MODEL = "Qwen/Qwen3-8B"
_REST_SECONDS = 240.0  # a cold start, the idle time (at least drain and lead time), and leading clients over
_WAKE_SECONDS = 120.0


@pytest.fixture(scope="module")
def asleep(operator: None, place: Kubectl) -> Json:
    """A service that has served a token once and rests since."""
    place.apply(stack.small_service("chat", min=0, max=2))
    place.wait_for("llms", "chat", lambda found: _counts(found).get("ready") == 1, 90, "the first replica")
    return place.wait_for("llms", "chat", _rests, _REST_SECONDS, "rest")


@pytest.fixture(scope="module")
def woken(asleep: Json, place: Kubectl) -> list[tuple[int, dict[str, str], bytes]]:
    """Answers to requests that came at once while no replica ran; below ten nobody is judged at this objective."""
    url = asleep["status"]["url"]
    with ThreadPoolExecutor(12) as several:
        return list(several.map(lambda _: _ask(url), range(12)))


def test_a_service_that_rests_says_so_and_what_a_wake_up_takes(asleep: Json, place: Kubectl) -> None:
    ready = condition(asleep, "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Idle")
    assert "the next request waits about" in ready["message"]
    assert asleep["status"]["coldStartSeconds"] > 0
    assert asleep["status"]["lastDecision"]["reason"] == "Idle"
    assert condition(asleep, "Reconciling") == {}
    assert condition(asleep, "MetricsAvailable")["status"] == "True"
    place.wait_until(lambda: not place.items("pods", "holdfast.dev/service=chat"), 60, "the last pod to be gone")
    assert len(place.items("pods", "holdfast.dev/activator=chat")) == 1


def test_who_asks_for_no_token_wakes_nobody(asleep: Json, place: Kubectl) -> None:
    url = asleep["status"]["url"]
    with urllib.request.urlopen(f"{url}/v1/models", timeout=patient(10.0)) as answer:
        assert json.load(answer)["data"][0]["id"] == _MODEL
    with urllib.request.urlopen(f"{url}/health", timeout=patient(10.0)) as answer:
        assert answer.status == 200
    time.sleep(10.0)  # five ticks
    assert _deployment_size(place) == 0


def test_the_first_requests_are_answered_not_refused(woken: list[tuple[int, dict[str, str], bytes]]) -> None:
    assert {status for status, _, _ in woken} == {200}
    assert all(json.loads(body)["usage"]["completion_tokens"] for _, _, body in woken)
    assert all(float(headers["X-Holdfast-Waited-Seconds"]) > 0.5 for _, headers, _ in woken)


def test_a_wake_up_is_told_and_ends_with_clients_at_the_engines(woken: Any, place: Kubectl) -> None:
    place.wait_until(lambda: "RequestsHeld" in _events(place), 30, "the Event of it")
    place.wait_until(lambda: "holdfast.dev/service" in _selector(place), 30, "clients to be led to the engines")
    url = place.get_json("llms", "chat")["status"]["url"]
    # Seldom, for what the activator passes on meanwhile counts as good beside the twelve that waited.
    place.wait_until(
        lambda: "X-Holdfast-Waited-Seconds" not in _ask(url)[1], 30, "an answer of the engine itself", poll_seconds=2.0
    )


def test_who_waited_for_a_cold_start_counts_as_missed(woken: Any, place: Kubectl) -> None:
    """The engine itself had them at once, and would call them good."""
    place.wait_for("llms", "chat", lambda found: _attainment(found) < 50.0, 90, "the misses")


def test_no_request_is_lost_at_the_edge_of_rest(woken: Any, place: Kubectl) -> None:
    """Requests come again just when the last replica is about to go, over kept and over new connections."""
    place.wait_until(lambda: "holdfast.dev/activator" in _selector(place), _REST_SECONDS, "clients to be led away")
    with SteadyLoad(f"http://chat.{place.namespace}.svc:8000", _MODEL, 0.6) as load:
        time.sleep(60.0)
    lost = [record for record in load.records if verdict.is_lost(record)]
    assert not lost, lost[:3]
    assert len(load.records) > 20


def test_without_an_activator_a_replica_runs(woken: Any, place: Kubectl) -> None:
    place.wait_for("llms", "chat", _rests, _REST_SECONDS, "rest again")
    place.scale("deployment", "chat-activator", 0)
    found = place.wait_for("llms", "chat", lambda found: _counts(found).get("ready") == 1, 150, "a replica")
    assert found["status"]["lastDecision"]["reason"] == "ActivatorSilent"
    place.scale("deployment", "chat-activator", 1)


def test_all_of_it_goes_when_the_service_may_no_longer_rest(woken: Any, place: Kubectl) -> None:
    place.patch("llms", "chat", {"spec": {"scaling": {"min": 1}}})
    place.wait_until(lambda: not place.exists("deployment", "chat-activator"), 90, "the activator to be gone")
    place.wait_for("llms", "chat", lambda found: _counts(found).get("ready") == 1, _WAKE_SECONDS, "a replica")
    url = place.get_json("llms", "chat")["status"]["url"]
    place.wait_until(lambda: _answers(url), 30, "an answer: the node's proxy may still lead to what has gone")


def test_who_waits_for_a_service_that_is_deleted_is_told_so(operator: None, place: Kubectl) -> None:
    """The cluster's DNS knows names of the cluster alone: what a search for the engines ends with, nobody answers."""
    doomed = stack.small_service("doomed", min=0, max=1)
    doomed["spec"]["accelerators"][0]["nodeSelector"] = {"no": "such-node"}
    place.apply(doomed)
    url = f"http://doomed.{place.namespace}.svc:8000"
    place.wait_until(lambda: _is_healthy(url), 60, "clients to be led to the activator")
    with ThreadPoolExecutor(1) as one:
        asked = one.submit(_ask, url)
        held = "the activator holds requests until one is ready"
        place.wait_for("llms", "doomed", lambda found: held in condition(found, "Ready").get("message", ""), 60, held)
        place.delete("llms", "doomed", wait=False)
        with pytest.raises(urllib.error.HTTPError, match="503") as told:
            asked.result(timeout=patient(GONE_SECONDS + 30.0))
    assert b"the service was deleted" in told.value.read()
    place.wait_until(lambda: not place.items("pods", "holdfast.dev/activator=doomed"), 60, "the activator to be gone")


def _ask(url: str) -> tuple[int, dict[str, str], bytes]:
    body = {"model": _MODEL, "prompt": "hello", "max_tokens": 8}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=patient(_WAKE_SECONDS)) as answer:
        return answer.status, dict(answer.headers), answer.read()


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=patient(10.0)) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _answers(url: str) -> bool:
    try:
        return _ask(url)[0] == 200
    except OSError:
        return False


def _events(place: Kubectl) -> list[str]:
    return [event["reason"] for event in place.items("events") if event["involvedObject"]["name"] == "chat"]


def _counts(found: Json) -> Json:
    counts: Json = found.get("status", {}).get("replicas", {})
    return counts


def _rests(found: Json) -> bool:
    return condition(found, "Ready").get("reason") == "Idle" and not _counts(found).get("desired")


def _selector(place: Kubectl) -> dict[str, str]:
    selector: dict[str, str] = place.get_json("service", "chat")["spec"]["selector"]
    return selector


def _deployment_size(place: Kubectl) -> int:
    return int(place.get_json("deployment", stack.deployment_of("chat"))["spec"]["replicas"])


def _attainment(found: Json) -> float:
    """In percent, 100 where nobody was judged yet."""
    text: str = found["status"].get("slo", {}).get("attainment", "100%")
    return float(text.rstrip("%"))
