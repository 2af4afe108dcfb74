"""A managed Prometheus behind a proxy that wants a header: Amazon's, Google's and Azure's are asked in this way."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from holdfast.domain.signals import SignalState, Traffic
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.signals.prometheus import PrometheusSource
from tests.fakes import AuthenticatingProxy, FakePrometheus
from tests.observe.observe_builders import CHAT, NOW, known_queries, ready, request, row

WORKSPACE = "/workspaces/ws-1"


@pytest.fixture
async def store() -> AsyncIterator[FakePrometheus]:
    async with FakePrometheus(known_queries()) as fake:
        fake.rows["engines"] = [row(NOW - 3, pod="chat-0")]
        fake.rows["requests"] = [row(90, metric="request_success_total", finished_reason="stop")]
        yield fake


@contextlib.asynccontextmanager
async def reading(proxy: AuthenticatingProxy, **address: object) -> AsyncIterator[PrometheusSource]:
    source = PrometheusSource(PrometheusAddress(proxy.url, timeout_seconds=30.0, **address))  # type: ignore[arg-type]
    try:
        yield source
    finally:
        await source.close()


async def seen(source: PrometheusSource, now: float = NOW) -> Traffic:
    return (await source.observe([request(ready("chat-0"))], now))[CHAT]


async def test_a_proxy_that_wants_a_header_is_asked_with_it_below_its_path(store: FakePrometheus) -> None:
    async with AuthenticatingProxy(store.url, WORKSPACE, {"X-Api-Key": "s3cret"}) as proxy:
        async with reading(proxy, headers=(("X-Api-Key", "s3cret"),)) as source:
            traffic = await seen(source)
        assert traffic.state is SignalState.FRESH, traffic.detail
        assert dict(traffic.by_accelerator)["h100"].finished == 90.0
        assert proxy.passed == len(store.asked) > 0
        assert not proxy.refused
        assert all("X-Api-Key" not in headers for headers in store.headers)


@pytest.mark.parametrize("refusal", [401, 403, 407])
@pytest.mark.parametrize("headers", [(), (("X-Api-Key", "wr0ng"),)])
async def test_a_proxy_that_refuses_is_named_with_the_remedy_and_nothing_is_taken_for_zero(
    store: FakePrometheus, refusal: int, headers: tuple[tuple[str, str], ...]
) -> None:
    async with (
        AuthenticatingProxy(store.url, WORKSPACE, {"X-Api-Key": "s3cret"}, refusal) as proxy,
        reading(proxy, headers=headers) as source,
    ):
        traffic = await seen(source)
    assert traffic.state is SignalState.UNREACHABLE
    assert f"rejected the credentials (HTTP {refusal}); check its token file and headers" in traffic.detail
    assert "wr0ng" not in traffic.detail
    assert store.asked == []


async def test_a_token_that_lives_an_hour_is_renewed_without_a_gap(store: FakePrometheus, tmp_path: Path) -> None:
    token = tmp_path / "token"

    def issue(text: str, proxy: AuthenticatingProxy, at: int) -> None:
        token.write_text(text)
        os.utime(token, (at, at))
        proxy.wanted = bearer(text)

    async with AuthenticatingProxy(store.url, WORKSPACE, {}) as proxy:
        issue("first", proxy, 1)
        async with reading(proxy, bearer_token_file=token) as source:
            assert (await seen(source)).fresh
            issue("second", proxy, 2)
            assert (await seen(source, NOW + 1)).fresh
        assert not proxy.refused


def bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"}
