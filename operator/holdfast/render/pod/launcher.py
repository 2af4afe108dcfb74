"""Start vLLM inside its pod: `python3 launcher.py serve MODEL --flag=value ...`.

Mounted into the engine's container, so it uses the standard library only and runs on Python 3.9. It becomes the
engine: the same process imports vLLM and calls its command line. A parent that spawns and forwards would buy nothing
(vLLM reaps its own children, and a container ends with its first process) and would add one more thing that can hang.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import logging
import multiprocessing.process
import os
import re
import secrets
import signal
import socket
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NoReturn

UNSUPPORTED_IMAGE = 64  # exit status: the image holds no engine, or one that is too old
UNSUPPORTED_ENGINE = 65  # exit status: the engine would run without its Python server
ADAPTER_MISSING = 66  # exit status: an adapter cannot be loaded
RUST_FRONTEND = "VLLM_USE_RUST_FRONTEND"
POD_PORT_VARIABLE = "HOLDFAST_POD_PORT"  # rendered where other processes serve requests
COUNTS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # where several API servers put what each has counted
PLUGIN_NAME = "holdfast"
OLDEST_VERSION = (0, 9)

# The first release that knows a flag; each takes one value.
FIRST_VERSIONS = {
    "--shutdown-timeout": (0, 18),
    "--max-num-queued-tokens": (0, 29),
    "--custom-histogram-buckets": (0, 32),
}
# The plugin lies next to this file as one zip. It reaches the engine's other processes through PYTHONPATH.
PLUGIN_ARCHIVE = "holdfast_engine.zip"
PLUGIN_SCHEDULER = "--scheduler-cls=holdfast_engine."
ADAPTERS_FLAG = "--lora-modules"
RANK_FLAG = "--max-lora-rank"
# The name of the pod's own request in the engine: another one at each start, so that no client can send it.
OWN_NAME_VARIABLE = "HOLDFAST_OWN_REQUEST_NAME"
# What to start vLLM with instead where it is no release that the plugin knows.
PLAIN_FLAGS_VARIABLE = "HOLDFAST_FLAGS_WITHOUT_PLUGIN"
# Of a log the kubelet keeps the last 2048 bytes, and there vLLM's API server only says "See root cause above" in a
# traceback twice as long. What is written to this file, 4096 bytes at most, takes their place.
TERMINATION_LOG = os.environ.get("HOLDFAST_TERMINATION_LOG", "/dev/termination-log")
MOST_BYTES, MOST_CHARACTERS, MOST_EXCEPTIONS = 4000, 1000, 6
# A process that has logged an exception so shortly before it ends has ended of it: vLLM's workers do not raise theirs.
RECENT_SECONDS = 60.0


def main(arguments: Sequence[str]) -> NoReturn:
    """Prepare the process, then run the engine that this image holds."""
    stop_on_sigterm()
    os.environ[OWN_NAME_VARIABLE] = "holdfast-" + secrets.token_hex(16)
    # The file outlives a container that its liveness probe ended: a new one must not start as draining.
    forget_drain(os.environ.get("HOLDFAST_DRAIN_FILE", "/tmp/holdfast-draining"))  # noqa: S108
    make_home(os.environ.get("HOME", ""))
    folder = os.path.dirname(os.path.abspath(__file__))
    import_middleware_from(folder)
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    refuse_environment()
    refuse_half(arguments)
    drop_counts_folder()
    if POD_PORT_VARIABLE in os.environ:
        serve_pod(int(os.environ[POD_PORT_VARIABLE]), arguments)
    if runs_emulator():
        run("holdfast.cli.main", ["holdfast", "emulate", *arguments])
    version = installed_version()
    arguments = with_adapters(arguments)
    if any(argument.startswith(PLUGIN_SCHEDULER) for argument in arguments):
        arguments = with_plugin(arguments, os.path.join(folder, PLUGIN_ARCHIVE), version)
    unknown = {flag for flag, first in FIRST_VERSIONS.items() if is_older(version, first)}
    run("vllm.entrypoints.cli.main", ["vllm", *on_all_addresses(without(arguments, unknown, version))])


def stop_on_sigterm() -> None:
    """End at once while Python still imports: the kernel hides SIGTERM from a first process without a handler.

    vLLM puts its own handler in place when it can drain. os._exit, because nothing is served yet and the imports
    that were cut short may not survive a tidy exit.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


def forget_drain(path: str) -> None:
    """Remove the file with which preStop tells the engine to drain."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def has_rust_front_end() -> bool:
    """Whether vLLM runs its Rust front end instead of the Python one."""
    return bool(os.environ.get(RUST_FRONTEND, "").strip("0"))


def serve_pod(port: int, arguments: Sequence[str]) -> None:
    """Answer for the pod in threads of this process, which starts the API servers and then waits for their end."""
    from holdfast_pod_server import Certificate, start

    given = dict(argument.partition("=")[::2] for argument in arguments)
    files = given.get("--ssl-certfile"), given.get("--ssl-keyfile")
    host = given.get("--host", "")
    everywhere = host in ("", "::", "0.0.0.0")  # noqa: S104  # compared, not listened on
    start(port, int(given["--port"]), Certificate(*files) if all(files) else None, "localhost" if everywhere else host)


def refuse_environment() -> None:
    """End the process where a variable takes away what Holdfast needs, wherever the pod has its value from."""
    if has_rust_front_end() and POD_PORT_VARIABLE not in os.environ:
        refuse(
            f"engine unsupported: {RUST_FRONTEND} replaces vLLM's Python server, and only engine.frontEnd says so to "
            "the operator; remove it from the environment and set engine.frontEnd: Rust",
            UNSUPPORTED_ENGINE,
        )
    if os.environ.get("VLLM_DP_SIZE", "1") != "1":
        refuse(
            "engine unsupported: VLLM_DP_SIZE divides the engine among pods, and a replica is one pod; remove it from "
            "the environment and set accelerators[].parallelism.data",
            UNSUPPORTED_ENGINE,
        )


def refuse_half(arguments: Sequence[str]) -> None:
    """End the process where its arguments, with all variables filled in, leave a part of each request to another."""
    role = re.search("(kv|ec)_(producer|consumer)", " ".join(arguments))
    if role:
        refuse(f"engine unsupported: with {role[0]} it is one half of an engine; remove that", UNSUPPORTED_ENGINE)


def drop_counts_folder() -> None:
    """Remove a variable that would have one API server count as several do; several get it from vLLM itself."""
    if os.environ.pop(COUNTS_VARIABLE, None) is not None:
        say(f"{COUNTS_VARIABLE} is left out: vLLM sets it itself where a pod has several API servers")


def make_home(path: str) -> None:
    """Make HOME, which lies on a volume that may be empty; say so when it cannot be written."""
    try:
        if path:
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        say(f"cannot make HOME {path}: {error}; the cache volume must be writable for uid {os.getuid()}")


def import_middleware_from(folder: str) -> None:
    """Look for modules in the mounted folder last, so that no file name of ours can shadow another module."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder] + [folder]


def with_plugin(arguments: Sequence[str], archive: str, version: str) -> list[str]:
    """The arguments as they are and the plugin on the path; plain flags where it does not know this vLLM."""
    problem = problem_with_plugin(archive, version)
    if not problem:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), archive]))
        if "VLLM_PLUGINS" in os.environ:  # a list of all that may be loaded
            os.environ["VLLM_PLUGINS"] += "," + PLUGIN_NAME
        say("the fast loop runs inside vLLM " + version)
        return list(arguments)
    forget_plugin(archive)
    plain = os.environ.get(PLAIN_FLAGS_VARIABLE, "").split()
    say(problem + ": no fast loop, " + (f"started with {' '.join(plain)} instead" if plain else "plain flags"))
    return [*(argument for argument in arguments if "=holdfast_engine." not in argument), *plain]


def problem_with_plugin(archive: str, version: str) -> str:
    """Why the plugin cannot run in this vLLM, empty when it can; it is on the path then."""
    sys.path.append(archive)
    try:
        from holdfast_engine.versions import is_supported

        return "" if is_supported(version) else "the plugin does not know vLLM " + version
    except Exception as error:  # no reason not to serve
        return f"the plugin cannot be loaded: {error!r}"


def forget_plugin(archive: str) -> None:
    """Leave no way to the plugin: neither its middleware nor its counters may be found."""
    sys.path.remove(archive)
    for name in [name for name in sys.modules if name.split(".")[0] == "holdfast_engine"]:
        del sys.modules[name]


def with_adapters(arguments: Sequence[str]) -> list[str]:
    """The arguments with the adapters where they are on disk; ends the process if one cannot be loaded.

    vLLM would end only after it has loaded the model, and takes no revision of an adapter.
    """
    given = dict(argument.partition("=")[::2] for argument in arguments)
    found, follows = [], False
    for argument in arguments:
        follows = argument == ADAPTERS_FLAG or (follows and not argument.startswith("-"))
        is_adapter = follows and argument.startswith("{")
        found.append(on_disk(argument, given.get(RANK_FLAG, "")) if is_adapter else argument)
    return found


def on_disk(module: str, most_rank: str) -> str:
    """One value of --lora-modules, with the folder of the adapter as its path; as it is where vLLM is to find it."""
    try:
        adapter = json.loads(module)
        failed, path = f"adapter {adapter['name']} cannot be loaded: ", str(adapter["path"])
    except (ValueError, KeyError):
        return module
    if not path.startswith("/"):
        if "@" not in path:
            return module
        path = downloaded(path, failed)
    try:
        with open(os.path.join(path, "adapter_config.json"), encoding="utf-8") as file:
            rank = json.load(file).get("r")
    except (OSError, ValueError, AttributeError) as error:
        refuse(f"{failed}{error}", ADAPTER_MISSING)
    if isinstance(rank, int) and most_rank.isdecimal() and rank > int(most_rank):
        refuse(f"{failed}its rank is {rank}, and {RANK_FLAG} is {most_rank}", ADAPTER_MISSING)
    return json.dumps({**adapter, "path": path})


def downloaded(uri: str, failed: str) -> str:
    """The folder with an adapter `org/name@commit` of the hub."""
    try:
        repository, _, commit = uri.partition("@")
        folder: str = importlib.import_module("huggingface_hub").snapshot_download(repository, revision=commit)
        return folder
    except Exception as error:  # of any library below it
        refuse(f"{failed}{type(error).__name__}: {' '.join(str(error).split())}", ADAPTER_MISSING)


def runs_emulator() -> bool:
    """Whether the engine is Holdfast's emulator: when asked for, or when the image holds it and no vLLM."""
    if os.environ.get("HOLDFAST_ENGINE") == "emulator":
        return True
    return distribution_version("vllm") is None and importlib.util.find_spec("holdfast") is not None


def installed_version() -> str:
    """The version of vLLM in this image; ends the process when there is none or it is too old."""
    version = distribution_version("vllm")
    if version is None:
        refuse(
            "image unsupported: this image holds no vLLM that python3 can import; use an image such as vllm/vllm-openai"
        )
    if is_older(version, OLDEST_VERSION):
        oldest = ".".join(map(str, OLDEST_VERSION))
        refuse(f"image unsupported: vLLM {version} is too old, this operator needs {oldest} or newer")
    return version


def distribution_version(name: str) -> str | None:
    """The version in the package's metadata, without importing it; None when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_older(version: str, first: tuple[int, int]) -> bool:
    """Whether a release came before `first`; builds without a release number (0.1.dev…) count as newest."""
    match = re.match(r"(\d+)\.(\d+)(?!\.?dev)", version)
    return match is not None and (int(match[1]), int(match[2])) < first


def without(arguments: Sequence[str], unknown: Collection[str], version: str) -> list[str]:
    """The arguments less the flags the engine does not know, and each dropped flag is reported on standard error."""
    kept = []
    skip_value = False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        if skip_value:
            skip_value = False
        elif flag.replace("_", "-") in unknown:
            say(f"vLLM {version} does not know {flag}: dropped")
            skip_value = not equals
        else:
            kept.append(argument)
    return kept


def on_all_addresses(arguments: Sequence[str]) -> list[str]:
    """The arguments, with IPv6 and IPv4 where the kernel has both: vLLM alone listens on IPv4 only.

    The kubelet of an IPv6-only cluster asks on IPv6.
    """
    given = any(argument.partition("=")[0] == "--host" for argument in arguments)
    return list(arguments) if given or not takes_both_families() else [*arguments, "--host=::"]


def takes_both_families() -> bool:
    """Whether a socket on :: also takes IPv4, as the kernel's default is."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.bind(("::", 0))
            return not tried.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    except OSError:
        return False


def run(module: str, argv: list[str]) -> NoReturn:
    """Become the command line `argv`, whose `main` stands in `module`."""
    sys.argv = argv
    say("starting " + " ".join(argv[:3]))
    with LAST_WORDS.of_this_process():
        sys.exit(importlib.import_module(module).main())


def refuse(message: str, status: int = UNSUPPORTED_IMAGE) -> NoReturn:
    """End the process; Kubernetes shows the last line as the container's termination message."""
    say(message)
    sys.exit(status)


def say(message: str) -> None:
    """Write one line for people; the engine's own log follows on the same stream."""
    print("holdfast launcher: " + message, file=sys.stderr, flush=True)  # noqa: T201


class LastWords:
    """Writes the exceptions that end the engine's processes to the termination log, without their frames.

    The first process that ends writes first, which is the one with the cause, and there is no room for all.
    """

    def __init__(self) -> None:
        self._logged, self._logged_at = "", 0.0

    def follow(self) -> None:
        """Note what this process logs, and write at the end of each process that it starts by fork."""
        make_record, run_process = logging.getLogRecordFactory(), multiprocessing.process.BaseProcess.run

        def noted(*given: Any, **named: Any) -> logging.LogRecord:
            record = make_record(*given, **named)
            if record.levelno >= logging.ERROR and record.exc_info and record.exc_info[1] is not None:
                self._logged, self._logged_at = exceptions_of(record.exc_info[1]), time.monotonic()
            return record

        def told(process: multiprocessing.process.BaseProcess) -> None:
            with self.of_this_process():
                run_process(process)

        logging.setLogRecordFactory(noted)
        multiprocessing.process.BaseProcess.run = told  # type: ignore[assignment, method-assign]

    @contextlib.contextmanager
    def of_this_process(self) -> Iterator[None]:
        """Write once what was run has ended, unless it has ended well."""
        try:
            yield
        except SystemExit as ending:
            if ending.code:
                self._write_logged()
            raise
        except Exception as error:
            write_last_words(exceptions_of(error))
            raise
        self._write_logged()

    def _write_logged(self) -> None:
        if time.monotonic() - self._logged_at < RECENT_SECONDS:
            write_last_words(self._logged)


LAST_WORDS = LastWords()


def exceptions_of(error: BaseException) -> str:
    """The exceptions that led to this one and itself, the first one first."""
    found: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in found and len(found) < MOST_EXCEPTIONS:
        found.insert(0, at)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    texts = ("".join(traceback.format_exception_only(type(each), each)).strip() for each in found)
    return "\n".join(text[:MOST_CHARACTERS] for text in texts)


def write_last_words(text: str) -> None:
    """Add them to the termination log, each line with the process as in vLLM's log, as far as there is room."""
    place = f"({multiprocessing.current_process().name} pid={os.getpid()}) "
    lines = "".join(f"{place}{line}\n" for line in text.splitlines()).encode()
    try:
        log = os.open(TERMINATION_LOG, os.O_WRONLY | os.O_APPEND)  # the kubelet has made it
    except OSError:
        return  # Kubernetes shows the last lines of the log instead
    with os.fdopen(log, "ab") as file:
        cut = lines[: max(0, MOST_BYTES - os.fstat(log).st_size)]
        file.write(cut.decode(errors="ignore").encode())  # no half of a character


# vLLM starts its processes by fork or by spawn, and each of the latter imports this file again.
if __name__ in ("__main__", "__mp_main__"):
    LAST_WORDS.follow()
if __name__ == "__main__":
    main(sys.argv[1:])
