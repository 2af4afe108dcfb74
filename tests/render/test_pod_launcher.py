"""The launcher, run as pods run it: a process of its own, with a made-up vLLM in its path."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.ports import free_port
from holdfast.render.pod import launcher

LAUNCHER = Path(__file__).parents[2] / "operator/holdfast/render/pod/launcher.py"
NEWEST = "0.33.0"

ECHO = "import json, sys\ndef main():\n    print(json.dumps(sys.argv), flush=True)\n"
ENDLESS_IMPORT = "import time\nprint('importing', flush=True)\nwhile True:\n    time.sleep(0.05)\n"
MIDDLEWARE = "import holdfast_middleware\ndef main():\n    print(holdfast_middleware.READY_PATH, flush=True)\n"
ALL_FLAGS = ["--shutdown-timeout=120", "--max-num-queued-tokens=5600", '--custom-histogram-buckets={"a":[1.0]}']


class Image:
    """A folder that stands for an image: packages, and metadata of what is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drain_file = folder / "draining"
        self.environment: dict[str, str] = {}

    def install(self, name: str, version: str, module: str, source: str) -> Image:
        """Add a distribution with one module."""
        info = self.folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        *packages, last = module.split(".")
        path = self.folder
        for package in packages:
            path = path / package
            path.mkdir(exist_ok=True)
            (path / "__init__.py").touch()
        (path / f"{last}.py").write_text(source)
        return self

    def vllm(self, version: str, source: str = ECHO) -> Image:
        """Add a vLLM whose command line is `source`."""
        return self.install("vllm", version, "vllm.entrypoints.cli.main", source)

    def holdfast(self) -> Image:
        """Add a Holdfast whose command line prints its arguments."""
        return self.install("holdfast", "0.1.0", "holdfast.cli.main", ECHO)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the launcher; -S hides what is installed around this test."""
        return subprocess.Popen(
            [sys.executable, "-S", str(LAUNCHER), *arguments],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(self.folder),
                "PYTHONDONTWRITEBYTECODE": "1",
                "HOLDFAST_DRAIN_FILE": str(self.drain_file),
                "HOME": str(self.folder / "home"),
                **self.environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, list[str], str]:
        """Run to the end: exit status, the arguments the engine saw but for the host, standard error."""
        status, seen, errors = self.run_as_it_is(*arguments)
        return status, [argument for argument in seen if argument != "--host=::"], errors

    def run_as_it_is(self, *arguments: str) -> tuple[int, list[str], str]:
        """The same with all arguments."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=60)
        return process.returncode, json.loads(output) if output else [], errors


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_arguments_reach_vllm_verbatim(image: Image) -> None:
    hostile = ["serve", "me/model", "--x=a b'\"$(reboot)`;\n|&", "--empty=", "-tp", "*", "--", "ü"]
    status, seen, _ = image.vllm(NEWEST).run("--", *hostile, *ALL_FLAGS)
    assert status == 0
    assert seen == ["vllm", *hostile, *ALL_FLAGS]


@pytest.mark.parametrize(
    ("version", "kept"),
    [
        ("0.33.0", 3),
        ("0.32.0+cpu", 3),
        ("0.31.1", 2),
        ("0.29.0rc1", 2),
        ("0.28.0", 1),
        ("0.18.0", 1),
        ("0.17.2.post1", 0),
        ("0.1.dev9215+g1a2b3c", 3),
        ("1.0.0", 3),
        ("nightly", 3),
    ],
)
def test_flags_that_the_version_does_not_know_are_dropped_and_named(image: Image, version: str, kept: int) -> None:
    _, seen, errors = image.vllm(version).run("serve", "me/model", *ALL_FLAGS, "--seed=1")
    assert seen == ["vllm", "serve", "me/model", *ALL_FLAGS[:kept], "--seed=1"]
    for flag in ALL_FLAGS[kept:]:
        assert f"vLLM {version} does not know {flag.split('=')[0]}: dropped" in errors


def test_a_dropped_flag_takes_its_value_along(image: Image) -> None:
    _, seen, _ = image.vllm("0.17.0").run("serve", "m", "--shutdown_timeout", "120", "--seed", "1")
    assert seen == ["vllm", "serve", "m", "--seed", "1"]


def test_sigterm_ends_it_while_vllm_still_imports(image: Image) -> None:
    with image.vllm(NEWEST, ENDLESS_IMPORT).start("serve", "me/model") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM


def test_the_middleware_can_be_imported_by_its_name(image: Image) -> None:
    with image.vllm(NEWEST, MIDDLEWARE).start("serve", "me/model") as process:
        output, errors = process.communicate(timeout=60)
    assert output == "/holdfast/ready\n", errors


def test_an_image_without_an_engine_is_refused(image: Image) -> None:
    status, _, errors = image.run("serve", "me/model")
    assert status == 64
    assert "image unsupported: this image holds no vLLM" in errors


def test_a_vllm_that_is_too_old_is_refused(image: Image) -> None:
    status, _, errors = image.vllm("0.8.5").run("serve", "me/model")
    assert status == 64
    assert "image unsupported: vLLM 0.8.5 is too old, this operator needs 0.9 or newer" in errors


HUB = """
import os
def snapshot_download(repository, revision):
    if repository == "org/none":
        raise KeyError("404 Client Error.\\n\\nRepository Not Found")
    return os.path.join(os.environ["HOME"], "..", repository, revision)
"""


def adapter(image: Image, folder: str, **config: object) -> str:
    (image.folder / folder).mkdir(parents=True)
    (image.folder / folder / "adapter_config.json").write_text(json.dumps(config))
    return str(image.folder / folder)


def modules(**paths: str) -> list[str]:
    return ["--lora-modules", *(json.dumps({"name": name, "path": path}) for name, path in paths.items())]


def test_adapters_are_where_they_are_and_those_of_the_hub_are_downloaded(image: Image) -> None:
    here, commit = adapter(image, "sql", r=16), "0" * 40
    adapter(image, f"org/chat-de/{commit}", r=8)
    image.install("huggingface_hub", "2.4.0", "huggingface_hub.__init__", HUB).vllm(NEWEST)
    given = modules(sql=here, de=f"org/chat-de@{commit}", late="org/left-to-vllm")
    status, seen, _ = image.run("serve", "m", "--max-lora-rank=16", *given, "--seed=1")
    found = [json.loads(each) for each in seen[seen.index("--lora-modules") + 1 : -1]]
    assert status == 0
    assert [each["name"] for each in found] == ["sql", "de", "late"]
    assert [os.path.realpath(each["path"]) for each in found[:2]] == [here, str(image.folder / "org/chat-de" / commit)]
    assert (found[2]["path"], seen[-1]) == ("org/left-to-vllm", "--seed=1")


def test_an_adapter_that_cannot_be_loaded_ends_it_before_the_model_is_loaded(image: Image) -> None:
    image.install("huggingface_hub", "2.4.0", "huggingface_hub.__init__", HUB).vllm(NEWEST)
    (image.folder / "broken").mkdir()
    (image.folder / "broken/adapter_config.json").write_text("[")
    high = adapter(image, "high", r=64)
    for path, said in (
        ("/nowhere", "No such file or directory: '/nowhere/adapter_config.json'"),
        (str(image.folder / "broken"), "Expecting value"),
        (high, "its rank is 64, and --max-lora-rank is 16"),
        (f"org/none@{'0' * 40}", "KeyError: '404 Client Error."),
    ):
        status, seen, errors = image.run("serve", "m", "--max-lora-rank=16", *modules(sql=path))
        assert (status, seen) == (66, [])
        assert "adapter sql cannot be loaded: " in errors.splitlines()[-1]
        assert said in errors.splitlines()[-1]


@pytest.mark.parametrize("module", ["sql=/nowhere", "{", '{"name": "sql"}', "[]"])
def test_what_an_adapter_is_that_people_wrote_is_left_to_vllm(module: str, image: Image) -> None:
    _, seen, _ = image.vllm(NEWEST).run("serve", "m", "--lora-modules", module)
    assert seen[-1] == module


# C08: vllm-project/vllm#44280, SemiAnalysisAI/InferenceX#1634
@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("VLLM_USE_RUST_FRONTEND", "1", "remove it from the environment and set engine.frontEnd: Rust"),
        ("VLLM_USE_RUST_FRONTEND", "true", "remove it from the environment and set engine.frontEnd: Rust"),
        ("VLLM_DP_SIZE", "2", "accelerators[].parallelism.data"),
    ],
)
def test_a_variable_that_takes_away_the_python_server_ends_it(
    variable: str, value: str, remedy: str, image: Image
) -> None:
    image.environment[variable] = value
    status, seen, errors = image.vllm(NEWEST).run("serve", "me/model")
    assert (status, seen) == (65, [])
    assert f"engine unsupported: {variable}" in errors
    assert remedy in errors


def test_a_folder_of_counts_that_the_image_sets_is_left_out(image: Image) -> None:
    image.environment["PROMETHEUS_MULTIPROC_DIR"] = "/tmp"
    source = "import json, os\ndef main():\n    print(json.dumps([*os.environ]))\n"
    status, seen, errors = image.vllm(NEWEST, source).run("serve", "me/model")
    assert status == 0
    assert "PROMETHEUS_MULTIPROC_DIR" not in seen
    assert "PROMETHEUS_MULTIPROC_DIR is left out" in errors


def test_the_emulator_refuses_such_a_variable_as_vllm_would(image: Image) -> None:
    image.environment["VLLM_USE_RUST_FRONTEND"] = "1"
    status, seen, _ = image.holdfast().run("serve", "me/model")
    assert (status, seen) == (65, [])


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer", "kv_both"])
def test_half_of_an_engine_that_a_variable_made_of_it_ends(role: str, image: Image) -> None:
    status, _, errors = image.vllm(NEWEST).run("serve", "m", f'--kv-transfer-config={{"kv_role":"{role}"}}')
    assert status == (0 if role == "kv_both" else 65)
    assert (f"engine unsupported: with {role}" in errors) == (role != "kv_both")


@pytest.mark.parametrize("rust", ["1", "0"])
def test_where_other_processes_serve_requests_the_first_one_answers_for_the_pod(rust: str, image: Image) -> None:
    port = free_port()
    image.environment |= {"VLLM_USE_RUST_FRONTEND": rust, "HOLDFAST_POD_PORT": str(port)}
    source = f"""
import urllib.error, urllib.request
def main():
    try:
        urllib.request.urlopen("http://127.0.0.1:{port}/metrics")
    except urllib.error.HTTPError as answer:
        print(json.dumps([str(answer.code), answer.read().decode()]))
"""
    status, seen, _ = image.vllm(NEWEST, "import json" + source).run("serve", "me/model", f"--port={free_port()}")
    assert status == 0
    assert seen[0] == "503"
    assert seen[1].startswith("the engine does not answer: ")


@pytest.mark.parametrize("value", ["0", ""])
def test_a_variable_that_is_off_changes_nothing(value: str, image: Image) -> None:
    image.environment["VLLM_USE_RUST_FRONTEND"] = value
    status, seen, _ = image.vllm(NEWEST).run("serve", "me/model")
    assert (status, seen) == (0, ["vllm", "serve", "me/model"])


def test_an_image_with_holdfast_and_no_vllm_runs_the_emulator(image: Image) -> None:
    status, seen, _ = image.holdfast().run("serve", "me/model", *ALL_FLAGS, "--middleware=a.B")
    assert status == 0
    assert seen == ["holdfast", "emulate", "serve", "me/model", *ALL_FLAGS, "--middleware=a.B"]


def test_the_emulator_runs_beside_vllm_only_when_asked_for(image: Image) -> None:
    image.vllm(NEWEST).holdfast()
    assert image.run("serve", "m")[1][0] == "vllm"
    image.environment["HOLDFAST_ENGINE"] = "emulator"
    assert image.run("serve", "m")[1][:2] == ["holdfast", "emulate"]


def test_a_restarted_container_is_not_draining(image: Image) -> None:
    image.drain_file.touch()
    image.vllm(NEWEST).run("serve", "m")
    assert not image.drain_file.exists()


def test_home_is_made_on_an_empty_volume_and_said_where_it_cannot_be(image: Image) -> None:
    assert image.vllm(NEWEST).run("serve", "m")[0] == 0
    assert (image.folder / "home").is_dir()
    image.environment["HOME"] = str(image.folder / "vllm-0.33.0.dist-info" / "METADATA" / "home")
    status, _, errors = image.run("serve", "m")
    assert status == 0
    assert "the cache volume must be writable for uid" in errors


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::", 0))
    except OSError:
        return False
    return True


def test_an_engine_listens_on_ipv6_too_where_the_kernel_has_it(image: Image) -> None:
    _, seen, _ = image.vllm(NEWEST).run_as_it_is("serve", "m")
    assert seen == ["vllm", "serve", "m", *(["--host=::"] if has_ipv6() else [])]


@pytest.mark.parametrize("host", [("--host=10.0.0.7",), ("--host", "10.0.0.7")])
def test_a_host_that_is_given_stays(image: Image, host: tuple[str, ...]) -> None:
    _, seen, _ = image.vllm(NEWEST).run_as_it_is("serve", "m", *host)
    assert seen == ["vllm", "serve", "m", *host]


class Ipv6Alone(socket.socket):
    """What the kernel makes where net.ipv6.bindv6only is 1."""

    def getsockopt(self, *_: int) -> int:  # type: ignore[override]
        return 1


class NoIpv6(socket.socket):
    def bind(self, address: object) -> None:
        raise OSError(99, "Cannot assign requested address")


@pytest.mark.parametrize("kind", [Ipv6Alone, NoIpv6])
def test_an_engine_stays_on_ipv4_where_a_socket_does_not_take_both(
    kind: type[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher.socket, "socket", kind)
    assert launcher.on_all_addresses(["serve", "m"]) == ["serve", "m"]
