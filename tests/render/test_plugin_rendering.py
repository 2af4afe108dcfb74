"""Which engines get the plugin, and how it, and what it is told, reach them."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import holdfast_engine
from holdfast.render import RenderContext, RenderSettings, podfiles, remarks, render
from holdfast.render.engine_limits import engine_limits
from holdfast.render.plugin import ARCHIVE, LIMITS_FILE, LIMITS_FOLDER, POD_FOLDER, tagged_release
from holdfast.render.podfiles import code_alone, load_plugin, load_pod_files
from holdfast.rendered.names import Manifest
from holdfast_engine.objectives.limits import DEFAULT_LIMITS
from holdfast_engine.objectives.rules import parse_limits
from tests.render.scenes import SETTINGS, chat_h100, context, engine, live, service

SCHEDULER = "--scheduler-cls=holdfast_engine.scheduler.HoldfastScheduler"
ADMISSION = "--max-num-queued-tokens=5600"
UNSUPPORTED = {"engine": {"image": "vllm/vllm-openai:v0.31.1"}}
NEWER = RenderSettings(pod_files=SETTINGS.pod_files, plugin=b"of a later version")


def config_maps(manifests: tuple[Manifest, ...]) -> dict[str, Manifest]:
    return {item["metadata"]["name"]: item for item in manifests if item["kind"] == "ConfigMap"}


def volume_names(manifest: Manifest) -> set[str]:
    return {volume["name"] for volume in manifest["spec"]["template"]["spec"]["volumes"]}


def mounted_files(manifest: Manifest) -> str:
    (found,) = (v for v in manifest["spec"]["template"]["spec"]["volumes"] if v["name"] == "holdfast")
    name: str = found["configMap"]["name"]
    return name


def test_an_engine_gets_the_scheduler_and_its_queue_no_constant_bound() -> None:
    container = engine(chat_h100(service(), context(admission_tokens=5600)))
    assert SCHEDULER in container["args"]
    assert ADMISSION not in container["args"]
    assert {"name": "HOLDFAST_FLAGS_WITHOUT_PLUGIN", "value": ADMISSION} in container["env"]


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"plugin": "Disabled"}},
        UNSUPPORTED,
        {"engine": {"args": ["--scheduler-cls=mine.Scheduler"]}},
        {"accelerators": [{"name": "h100", "args": ["--scheduler_cls", "mine.Scheduler"]}]},
    ],
    ids=["off", "unsupported", "own scheduler", "own scheduler of the accelerator"],
)
def test_an_engine_without_the_plugin_has_plain_flags_and_no_limits(changes: dict[str, Any]) -> None:
    of = service(changes)
    manifest = chat_h100(of, context(admission_tokens=5600))
    container = engine(manifest)
    assert SCHEDULER not in container["args"]
    assert ADMISSION in container["args"]
    assert "HOLDFAST_FLAGS_WITHOUT_PLUGIN" not in {item["name"] for item in container["env"]}
    assert not {"service-limits", "pod-limits"} & volume_names(manifest)
    assert "chat-engine-limits" not in config_maps(render(of, ["h100"], SETTINGS, RenderContext()))


def test_off_means_that_nothing_of_the_plugin_is_mounted() -> None:
    off = service({"engine": {"plugin": "Disabled"}})
    (files,) = config_maps(render(off, ["h100"], SETTINGS, RenderContext())).values()
    assert "binaryData" not in files
    assert files["metadata"]["name"] == mounted_files(chat_h100(off))
    assert mounted_files(chat_h100(off)) != mounted_files(chat_h100(service()))


def test_a_users_own_admission_flag_is_the_only_one_with_and_without_the_plugin() -> None:
    container = engine(chat_h100(service({"engine": {"args": ["--max-num-queued-tokens=9"]}}), context()))
    assert [item for item in container["args"] if "queued" in item] == ["--max-num-queued-tokens=9"]
    assert "HOLDFAST_FLAGS_WITHOUT_PLUGIN" not in {item["name"] for item in container["env"]}


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("registry:5000/mirror/vllm-openai:v0.31.1@sha256:0a1b", "0.31.1"),
        ("rocm/vllm:0.32", "0.32.0"),
        ("vllm/vllm-openai:v0.33.0rc1", "0.33.0"),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai", None),
        ("registry:5000/vllm/vllm-openai", None),
        ("rocm/vllm:rocm7.0_vllm_0.31", None),
        ("example.com/engine:1.2.3", None),
        ("vllm/vllm-openai@sha256:0a1b", None),
    ],
)
def test_a_release_is_read_from_tags_that_name_one(image: str, release: str | None) -> None:
    assert tagged_release(image) == release


def test_a_mounted_file_is_where_the_plugin_looks_for_it() -> None:
    assert f"{POD_FOLDER}/{LIMITS_FILE}:{LIMITS_FOLDER}/{LIMITS_FILE}" == DEFAULT_LIMITS
    mounted = {mount["mountPath"]: mount for mount in engine(chat_h100(service()))["volumeMounts"]}
    assert all(mounted[folder]["readOnly"] for folder in (POD_FOLDER, LIMITS_FOLDER))
    assert not any("subPath" in mount for mount in mounted.values()), "the kubelet never updates those"


def test_each_accelerator_reads_its_own_limits() -> None:
    of = service({"accelerators": [{"name": "h100"}, {"name": "l40s"}]})
    manifests = render(of, ["h100", "l40s"], SETTINGS, RenderContext())
    told = config_maps(manifests)["chat-engine-limits"]["data"]
    assert {name: parse_limits(text) for name, text in told.items()} == {
        accelerator.name: engine_limits(of, accelerator) for accelerator in of.spec.accelerators
    }
    for manifest in manifests[-2:]:
        volumes = {v["name"]: v for v in manifest["spec"]["template"]["spec"]["volumes"]}
        (item,) = volumes["service-limits"]["configMap"]["items"]
        assert item == {"key": manifest["metadata"]["labels"]["holdfast.dev/accelerator"], "path": LIMITS_FILE}
        assert volumes["service-limits"]["configMap"]["optional"], "an engine must start without limits"


def test_limits_as_numbered_for_running_engines_stand_in_the_config_map() -> None:
    of = service()
    numbered = engine_limits(of, of.spec.accelerators[0], 77, active_sequences=12)
    facts = RenderContext(limits=(("h100", numbered),))
    (told,) = config_maps(render(of, ["h100"], SETTINGS, facts))["chat-engine-limits"]["data"].values()
    assert parse_limits(told) == numbered
    assert hash(facts) == hash(RenderContext(limits=(("h100", numbered),)))


@pytest.mark.parametrize("changes", [{"slo": {"ttft": "450ms"}}, {"overload": "Reject"}])
def test_what_engines_are_told_is_no_part_of_their_template(changes: dict[str, Any]) -> None:
    first, edited = chat_h100(service()), chat_h100(service(changes), context(deployed=live(chat_h100(service()))))
    assert engine(edited) == engine(first)
    told = [
        config_maps(render(of, ["h100"], SETTINGS, RenderContext()))["chat-engine-limits"]["data"]
        for of in (service(), service(changes))
    ]
    assert told[0] != told[1]


def test_a_new_plugin_waits_for_the_next_rollout_and_the_old_one_stays_referenced() -> None:
    first = chat_h100(service(), context(admission_tokens=5600))
    upgraded = chat_h100(service(), context(deployed=live(first)), NEWER)
    assert mounted_files(upgraded) == mounted_files(first)
    manifests = render(service(), ["h100"], NEWER, context(deployed=live(first)))
    assert list(config_maps(manifests)) == ["chat-engine-limits"], "the new files are for pods that mount them"


def test_a_plugin_revision_brings_the_present_plugin() -> None:
    first = live(chat_h100(service(), context(admission_tokens=5600)))
    wanted = service({"engine": {"pluginRevision": "2"}})
    rolled = chat_h100(wanted, context(deployed=first), NEWER)
    assert mounted_files(rolled) == mounted_files(chat_h100(service(), settings=NEWER))
    assert mounted_files(rolled) in config_maps(render(wanted, ["h100"], NEWER, context(deployed=first)))
    settled = chat_h100(wanted, context(deployed=live(rolled)), NEWER)
    assert engine(settled) == engine(rolled)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        (
            {"engine": {"plugin": "Disabled"}},
            "engine.plugin is Disabled; requests beyond its capacity are refused, not queued",
        ),
        ({"engine": {"plugin": "Disabled"}, "overload": "Reject"}, ""),
        (UNSUPPORTED, "the plugin knows vLLM 0.32 and 0.33, and the image is 0.31.1; requests beyond"),
        ({**UNSUPPORTED, "overload": "Reject"}, "the plugin knows vLLM 0.32 and 0.33, and the image is 0.31.1"),
        ({"engine": {"args": ["--scheduler-cls=mine.S"]}}, "the arguments name a --scheduler-cls of their own"),
        ({"engine": {"args": ["--scheduler_cl", "mine.S"]}}, "the arguments name a --scheduler-cls of their own"),
    ],
)
def test_it_is_said_why_an_engine_has_no_fast_loop(changes: dict[str, Any], said: str) -> None:
    spoken = " ".join(remarks(service(changes), ["h100"], context(admission_tokens=5600)))
    assert (f"chat-h100: no fast loop, because {said}" in spoken) if said else not spoken


def test_engines_from_before_the_plugin_are_named_until_they_are_replaced() -> None:
    before = live(chat_h100(service(), context(admission_tokens=5600), RenderSettings(pod_files={})))
    (remark,) = remarks(service(), ["h100"], context(deployed=before, surge_room=1))
    assert remark == (
        "chat-h100: started without the fast loop; its next rollout brings it, a new engine.pluginRevision at once"
    )
    after = live(chat_h100(service({"engine": {"pluginRevision": 1}}), context(deployed=before, admission_tokens=5600)))
    assert not remarks(service(), ["h100"], context(deployed=after, surge_room=1))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / ARCHIVE
    path.write_bytes(load_plugin())
    return path


def test_the_plugin_is_packed_to_the_same_bytes_every_time() -> None:
    assert load_plugin() == load_plugin()
    with zipfile.ZipFile(io.BytesIO(load_plugin())) as packed:
        names = packed.namelist()
        assert {entry.date_time for entry in packed.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert "holdfast_engine/scheduler.py" in names
    assert not any("__pycache__" in name for name in names)


def test_python_finds_the_entry_point_inside_the_zip(archive: Path) -> None:
    (found,) = importlib.metadata.distributions(name="holdfast-engine", path=[str(archive)])
    (entry,) = found.entry_points.select(group="vllm.stat_logger_plugins")
    assert entry.value == "holdfast_engine.statlogger:HoldfastStatLogger"


def test_python_imports_the_rules_from_the_zip(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "holdfast_engine"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(archive))
    found = importlib.import_module("holdfast_engine.fastloop")
    assert str(found.__file__).startswith(str(archive))
    for name in [name for name in sys.modules if name.split(".")[0] == "holdfast_engine"]:
        monkeypatch.delitem(sys.modules, name)


def test_what_a_service_mounts_fits_a_config_map_many_times_and_memory_a_thousand_times() -> None:
    settings = RenderSettings(pod_files=load_pod_files(), plugin=load_plugin())
    files = settings.mounted_files(service().spec)
    assert len(json.dumps(files)) < 2**20 / 8
    assert settings.mounted_files(service().spec) is files, "one text for all services"


def test_mounted_code_is_indented_by_a_space_and_texts_of_several_lines_keep_their_own() -> None:
    told = code_alone('def told() -> str:\n    if True:\n        return """a\n    b"""\n    return ""\n')
    assert told == 'def told():\n if True:\n  return """a\n    b"""\n return ""\n'


def test_mounted_functions_have_no_types_but_fields_keep_theirs() -> None:
    told = code_alone(
        'class A(NamedTuple):\n    b: int\n    def c(self, d: "é->" = 1, *e: int) -> list[int]: return [d]\n'
    )
    assert told == "class A(NamedTuple):\n b: int\n def c(self, d = 1, *e): return [d]\n"
    told = code_alone("def c(\n    d: dict[\n        str, int\n    ],\n) -> int: ...\n")
    assert told == "def c(\n d: dict[\n  str, int\n ],\n): ...\n"


def test_what_is_mounted_is_the_code_alone_and_every_statement_on_its_line() -> None:
    def statements(text: str) -> list[tuple[str, int]]:
        found = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.stmt)]
        told = [each for each in found if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
        return sorted((type(each).__name__, each.lineno) for each in told)

    for file in (
        *Path(holdfast_engine.__file__).parent.rglob("*.py"),
        *Path(podfiles.__file__).with_name("pod").glob("*.py"),
    ):
        text = file.read_text(encoding="utf-8")
        assert statements(code_alone(text)) == statements(text)
    assert code_alone('"""Doc."""\nA = "#"  # why\n') == '""\nA = "#"\n'
