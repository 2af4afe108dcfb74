"""Builds and connects all parts of the operator; no other module does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import kopf

from holdfast.act.api import ApiPort, ApiUnreachable, KubernetesApi, NoCluster, WhileLeading, connect
from holdfast.act.discovery import (
    has_benchmarks,
    has_group_sets,
    has_inference_pools,
    has_pod_monitors,
    may_read_devices,
    may_read_quotas,
    missing,
    our_own_api,
    readable,
)
from holdfast.api.tenants import ALL_OTHERS
from holdfast.control.benchmarks.benchmarks import Benchmarks
from holdfast.control.tick import handlers
from holdfast.control.tick.leadership import Elector, LeadershipLost, LeaseTiming
from holdfast.control.tick.loop import Loop
from holdfast.control.tick.served_crds import ServedCrds
from holdfast.control.tick.targets import Targets
from holdfast.control.writes.actuator import Actuator
from holdfast.domain.snapshot import Timing
from holdfast.observe.adoption.adopted_metrics import SplitSource, TargetsClient
from holdfast.observe.endpoints.activators import ActivatorClient, ActivatorSource, NoActivators
from holdfast.observe.objects import cluster as observed
from holdfast.observe.objects.device_resources import DeviceResources
from holdfast.observe.objects.gpu_caps import GpuCaps
from holdfast.observe.objects.nodes import Nodes
from holdfast.observe.series.client import PrometheusClient
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.page.board import Board
from holdfast.page.recall import Recall
from holdfast.policy.settings import PolicySettings
from holdfast.render import RenderSettings
from holdfast.render.podfiles import load_plugin, load_pod_files
from holdfast.runtime import memory, ports
from holdfast.runtime.logs import configure_logging
from holdfast.runtime.prometheus import prometheus_address
from holdfast.runtime.relists import complete_watches
from holdfast.runtime.settings import Settings, SettingsError
from holdfast.runtime.telemetry import Telemetry
from holdfast.runtime.toggles import calm_toggles

_LOG = logging.getLogger(__name__)
_SETTLE_SECONDS = 15.0
_NAMESPACE_AGAIN_SECONDS = 30.0
_API_AGAIN_SECONDS = 30.0
_MOST_LEVELS = 20_000  # API servers accept 10,000 levels of JSON; one unparsable object would end the watch


def run(settings: Settings) -> int:
    """Run the operator.

    0 after a signal, 1 when leadership was lost or a part crashed, 2 without a cluster or with a limit of a namespace
    that does not exist.
    """
    configure_logging(settings.log_level, settings.log_format)
    memory.frugal_allocation()
    sys.setrecursionlimit(_MOST_LEVELS)
    if settings.kubeconfig is not None:
        os.environ["KUBECONFIG"] = str(settings.kubeconfig)  # kopf reads it from there
    code = 0
    try:
        asyncio.run(_until_signal(settings))
    except* (NoCluster, SettingsError) as refused:
        _LOG.error("%s", refused.exceptions[0])
        code = 2
    except* LeadershipLost as lost:
        # Crash-only: a process that lost leadership must not retain state from the time it led.
        _LOG.error("leadership lost, the process ends: %s", lost.exceptions[0])
        code = 1
    return code


async def _until_signal(settings: Settings) -> None:
    loop = asyncio.get_running_loop()

    def stop_on_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)

    task = asyncio.create_task(_operate(settings, stop_on_signals))
    stop_on_signals()
    try:
        await task
    except asyncio.CancelledError:
        _LOG.info("stopped by signal")


async def _operate(settings: Settings, stop_on_signals: Callable[[], None]) -> None:
    async with (
        connect(settings.kubeconfig) as api,
        _metrics_source(settings) as metrics,
        _activators(settings) as activators,
    ):
        board = Board(lambda: api.outage) if settings.status_port else None
        telemetry = Telemetry(board=board)
        elector, render_settings = _elector(settings, api), _render_settings(settings)
        devices, nodes = DeviceResources(), Nodes()
        indices = observed.ClusterView(
            settings.allow_template, settings.max_priorities, devices, nodes, settings.engine_images
        )
        caps = GpuCaps(settings.namespace_shares, nodes)
        control_loop = Loop(
            cluster=indices,
            caps=caps,
            metrics=metrics,
            actuator=Actuator(
                api,
                metrics,
                telemetry,
                render_settings,
                may_write=lambda: elector.leading,
                scrape_seconds=settings.scrape_seconds,
            ),
            telemetry=telemetry,
            timing=Timing(settings.tick_seconds, settings.scrape_seconds),
            policy_settings=_policy_settings(settings),
            monotonic=time.monotonic,
            wall=time.time,
            activators=activators,
            benchmarks=Benchmarks(api, render_settings, telemetry, may_write=lambda: elector.leading),
            targets=Targets(WhileLeading(api, lambda: elector.leading)),
            crds=ServedCrds(api, telemetry, time.monotonic),
        )
        async with (
            asyncio.TaskGroup() as tasks,
            ports.opened(settings, telemetry, control_loop.alive, board),
        ):
            await _limited_namespaces_exist(settings, api)
            tasks.create_task(elector.run())
            await elector.acquired()
            telemetry.leading(True)
            if board is not None:
                tasks.create_task(Recall(PrometheusClient(prometheus_address(settings)), board, time.time).run())
            watch = partial(_watch, settings, api, indices, caps, devices)
            await _lead(tasks, control_loop, watch, stop_on_signals)


async def _lead(
    tasks: asyncio.TaskGroup,
    control_loop: Loop,
    watch: Callable[[Loop, asyncio.Event, asyncio.Event], Awaitable[None]],
    stop_on_signals: Callable[[], None],
) -> None:
    """Decide and watch until the end; RuntimeError where the watch ends."""
    # The loop starts before kopf: kopf cancels every task that was created after its own start.
    watching, synced = asyncio.Event(), asyncio.Event()
    tasks.create_task(_after(synced, control_loop))
    tasks.create_task(_settle_memory(synced))
    tasks.create_task(_take_signals_back(watching, stop_on_signals))
    await watch(control_loop, watching, synced)
    raise RuntimeError("the watch of the API server ended")


async def _limited_namespaces_exist(settings: Settings, api: KubernetesApi) -> None:
    """Refuse to start with a limit of an unknown namespace: under a misspelt name nobody would be limited."""
    for flag, limits in (("max-priority", settings.max_priorities), ("namespace-share", settings.namespace_shares)):
        for name in await missing(api, sorted(limits.keys() - {ALL_OTHERS})):
            raise SettingsError(
                f"--{flag}: namespace {name} does not exist; correct its name, create it, or remove the limit"
            )


async def _after(synced: asyncio.Event, control_loop: Loop) -> None:
    await synced.wait()
    await control_loop.run()


async def _settle_memory(synced: asyncio.Event) -> None:
    """Settle memory once kopf has freed the bodies and the first ticks are over."""
    await synced.wait()
    await asyncio.sleep(_SETTLE_SECONDS)
    memory.settle()


async def _take_signals_back(watching: asyncio.Event, stop_on_signals: Callable[[], None]) -> None:
    """Restore our signal handlers: kopf replaces them at its start, and its shutdown would look like a broken watch."""
    await watching.wait()
    stop_on_signals()


async def _watch(
    settings: Settings,
    api: KubernetesApi,
    indices: observed.ClusterView,
    caps: GpuCaps,
    devices: DeviceResources,
    control_loop: Loop,
    watching: asyncio.Event,
    synced: asyncio.Event,
) -> None:
    registry = kopf.OperatorRegistry()
    kopf.on.login(id="kubeconfig", registry=registry, errors=kopf.ErrorsMode.IGNORED)(kopf.login_with_kubeconfig)
    kopf.on.login(id="pod", registry=registry, errors=kopf.ErrorsMode.IGNORED)(kopf.login_with_service_account)
    calm_toggles(synced.set)
    complete_watches()
    kopf_settings = handlers.settings()
    await our_own_api(api)
    namespaces = await _namespaces(settings, api)
    benchmarks, group_sets = await has_benchmarks(api), await has_group_sets(api)
    caps.register(registry, quotas=await may_read_quotas(api, namespaces))
    if await may_read_devices(api):
        devices.register(registry)
    indices.register(
        registry,
        kopf_settings,
        pod_monitors=await has_pod_monitors(api),
        inference_pools=await has_inference_pools(api),
        group_sets=group_sets,
        benchmarks=benchmarks,
    )
    handlers.register(registry, wake=control_loop.wake, benchmarks=benchmarks)
    async with asyncio.TaskGroup() as tasks:
        again = tasks.create_task(_end_when_readable(api, set(settings.namespace) - set(namespaces)))
        served = tasks.create_task(_end_when_served(api, group_sets=group_sets))
        await kopf.operator(
            registry=registry,
            settings=kopf_settings,
            clusterwide=not settings.namespace,
            namespaces=namespaces,
            standalone=True,
            ready_flag=watching,
        )
        again.cancel()
        served.cancel()


async def _namespaces(settings: Settings, api: KubernetesApi) -> tuple[str, ...]:
    """Skip unreadable namespaces: kopf would end at each of them and leave the remaining ones unmanaged."""
    while True:
        found = await readable(api, settings.namespace)
        for name in sorted(set(settings.namespace) - set(found)):
            _LOG.warning("namespace %s is not watched: it or its Role was deleted (chart: watchNamespaces)", name)
        if found or not settings.namespace:
            return found
        await asyncio.sleep(_NAMESPACE_AGAIN_SECONDS)


async def _end_when_readable(api: KubernetesApi, left_out: set[str]) -> None:
    """Restart the process once a skipped namespace becomes readable."""
    while left_out:
        await asyncio.sleep(_NAMESPACE_AGAIN_SECONDS)
        back = await readable(api, sorted(left_out))
        if back:
            raise RuntimeError(f"namespace {back[0]} can be read again; the process restarts")


async def _end_when_served(api: ApiPort, *, group_sets: bool) -> None:
    """Restart the process once the cluster has LeaderWorkerSets: kopf watches what there was at its start."""
    while not group_sets:
        await asyncio.sleep(_API_AGAIN_SECONDS)
        with contextlib.suppress(ApiUnreachable):
            if await has_group_sets(api):
                raise RuntimeError("the cluster has LeaderWorkerSets now; the process restarts")


def _elector(settings: Settings, api: KubernetesApi) -> Elector:
    duration = settings.lease_duration_seconds
    return Elector(
        api,
        namespace=settings.own_namespace,
        name=settings.lease_name,
        identity=settings.own_identity,
        timing=LeaseTiming(duration, duration * 2 / 3, duration * 2 / 15),
        monotonic=time.monotonic,
        wall=time.time,
    )


def _policy_settings(settings: Settings) -> PolicySettings:
    return PolicySettings(
        provisioning_seconds=settings.node_provisioning_seconds,
        starting_seconds=settings.startup_seconds,
        idle_seconds=settings.idle_seconds,
    )


def _render_settings(settings: Settings) -> RenderSettings:
    return RenderSettings(
        pod_files=load_pod_files(),
        plugin=load_plugin(),
        scrape_interval=settings.scrape_interval,
        startup_seconds=math.ceil(settings.startup_seconds),
        pod_monitor_labels=settings.pod_monitor_labels,
        activator_image=settings.activator_image,
        platform_assigns_ids=settings.platform_assigns_ids,
    )


@asynccontextmanager
async def _activators(settings: Settings) -> AsyncIterator[ActivatorSource]:
    if not settings.activator_image:
        yield NoActivators()
        return
    client = ActivatorClient()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def _metrics_source(settings: Settings) -> AsyncIterator[SplitSource]:
    address = prometheus_address(settings)
    periods = settings.tick_seconds, settings.scrape_seconds
    client = TargetsClient(PrometheusClient(address))
    source = SplitSource(
        PrometheusSource(address, *periods), PrometheusSource(address, *periods, client=client), client
    )
    try:
        yield source
    finally:
        await source.close()
