"""What the processes of vLLM write when one of them fails, as releases from 0.9 to 0.32 write it."""

from __future__ import annotations

from collections.abc import Callable

FRAMES = (
    ("v1/engine/core_client.py", 769, "__init__", "super().__init__("),
    ("v1/engine/core_client.py", 448, "__init__", "with launch_core_engines(vllm_config, executor_class) as ("),
    ("v1/engine/utils.py", 732, "launch_core_engines", "wait_for_engine_startup("),
)
DIRECT = "The above exception was the direct cause of the following exception:"
MEANWHILE = "During handling of the above exception, another exception occurred:"
POINTERS = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root "
    "cause.",
)
WORKER_POINTERS = (
    "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root "
    "cause.",
    "RuntimeError: Worker failed with error 'x', please check the stack trace above for the root cause",
)


def traceback(*exceptions: str, depth: int = 3, link: str = DIRECT) -> str:
    """Return the traceback of exceptions that led to each other."""
    frames = "".join(
        f'  File "/usr/local/lib/python3.12/dist-packages/vllm/{file}", line {number}, in {name}\n    {code}\n'
        for file, number, name, code in (FRAMES * depth)[:depth]
    )
    each = (f"Traceback (most recent call last):\n{frames}{exception}" for exception in exceptions)
    return f"\n\n{link}\n\n".join(each)


def prefixed(text: str, process: str, pid: int, record: str = "") -> str:
    """Return lines as a process writes them."""
    return "\n".join(f"({process} pid={pid}) {record}{line}" for line in text.split("\n"))


def record(file: str, number: int = 708) -> str:
    """Return what vLLM puts before each line of a record of its log."""
    return f"ERROR 11-27 18:00:00 [{file}:{number}] "


def of_vllm_0_9(cause: str, pointer: str, **shape: int) -> str:
    """No line says which process wrote it."""
    raised = traceback(cause, **shape)
    log = "\n".join(f"{record('core.py', 586)}{line}" for line in ["EngineCore failed to start.", *raised.split("\n")])
    return f"{log}\nProcess EngineCore_0:\n{raised}\n{traceback(pointer, **shape)}\n"


def of_vllm_0_11(cause: str, pointer: str, **shape: int) -> str:
    """Each line says which process wrote it."""
    raised = traceback(cause, **shape)
    return "\n".join(
        [
            prefixed(f"EngineCore failed to start.\n{raised}", "EngineCore_DP0", 88, record("core.py")),
            prefixed(f"Process EngineCore_DP0:\n{raised}", "EngineCore_DP0", 88),
            prefixed(traceback(pointer, **shape), "APIServer", 1),
            "",
        ]
    )


def of_vllm_0_32(cause: str, pointer: str, **shape: int) -> str:
    """Records say which process wrote them, and what Python writes itself does not. Lines of a record end with CR."""
    raised = traceback(cause, **shape)
    log = prefixed(f"EngineCore failed to start.\n{raised}", "EngineCore", 88, record("core.py", 1510))
    return "{}\nProcess EngineCore:\n{}\n{}\n".format(log.replace("\n", "\r\n"), raised, traceback(pointer, **shape))


def of_workers(cause: str, pointer: str, **shape: int) -> str:
    """Four workers fail one after the other; the engine core and the API server report it."""
    peers = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
    workers = [
        prefixed(
            f"WorkerProc failed to start.\n{traceback(cause if rank == 2 else peers, **shape)}",
            f"Worker_TP{rank}",
            120 + rank,
            record("multiproc_executor.py", 953),
        )
        for rank in (2, 0, 1, 3)
    ]
    core = prefixed(traceback(WORKER_POINTERS[0], **shape), "EngineCore_DP0", 88, record("core.py"))
    stopped = prefixed(traceback("KeyboardInterrupt: terminated", **shape), "Worker_TP2", 122)
    return "\n".join([*workers, stopped, core, prefixed(traceback(pointer, **shape), "APIServer", 1), ""])


def of_another_wording(cause: str, pointer: str, **shape: int) -> str:
    """The API server does not say that it only reports."""
    del pointer
    engine = prefixed(traceback(cause, **shape), "EngineCore_DP1", 90)
    return f"{engine}\n{prefixed(traceback('RuntimeError: startup failed: 1', **shape), 'APIServer', 1)}\n"


STYLES: dict[str, Callable[..., str]] = {
    "0.9": of_vllm_0_9,
    "0.11": of_vllm_0_11,
    "0.32": of_vllm_0_32,
    "workers": of_workers,
    "another wording": of_another_wording,
}
