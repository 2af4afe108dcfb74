"""One engine in one process with a fault in each hook of the plugin, one after the other.

    python everyhook.py MODEL RESULT      # in the environment of vLLM, with the plugin on PYTHONPATH

After each fault the plugin is switched on again in the same engine, which is idle then.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

FAULTS = (
    *("loop.arrive", "loop.before_step", "loop.look", "loop.scheduled", "loop.updated", "loop.finish"),
    *("loop.is_record_due", "loop.record", "loop.counts", "writer.write"),
    *("order.add", "order.head", "order.take", "order.put_first", "order.remove", "order.advance"),
    *("ledger.arrive", "ledger.expire", "ledger.first_token", "ledger.end", "fit.observe", "fit.update"),
)
_CALLS_BEFORE = 1
_REQUESTS = 24
_ABORTED = 3


class Notes(logging.Handler):
    """What the plugin says."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, entry: logging.LogRecord) -> None:
        """Keep it."""
        self.lines.append(entry.getMessage())


class Faulty:
    """A method that fails from its second call on."""

    def __init__(self, name: str, working: Any) -> None:
        self.name = name
        self.calls = 0
        self._working = working

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls > _CALLS_BEFORE:
            raise RuntimeError(f"a fault in {self.name}")
        return self._working(*given, **named)


class Engine:
    """vLLM in this process, with too little memory for all requests at once."""

    def __init__(self, model: str) -> None:
        from vllm import EngineArgs, LLMEngine, SamplingParams

        self._params = SamplingParams
        self._number = 0
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=model,
                load_format="dummy",
                enforce_eager=True,
                dtype="float32",
                max_model_len=1024,
                max_num_seqs=8,
                max_num_batched_tokens=256,
                block_size=32,
                num_gpu_blocks_override=20,
                enable_prefix_caching=False,
                scheduler_cls="holdfast_engine.scheduler.HoldfastScheduler",
            )
        )
        self.scheduler: Any = self._engine.engine_core.engine_core.scheduler

    def answers(self) -> list[list[int]]:
        """Greedy answers to the same requests; every eighth is aborted on the way, and empty."""
        self._number += 1
        names = [f"{self._number}-{number}" for number in range(_REQUESTS)]
        for number, name in enumerate(names):
            # Long enough answers that sequences are preempted: all together do not fit.
            params = self._params(temperature=0.0, max_tokens=60, ignore_eos=True)
            prompt = [3 + (31 * number + 7 * position) % 900 for position in range(20 + 5 * number)]
            self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        found: dict[str, list[int]] = {name: [] for name in names}
        steps = 0
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished and output.outputs:
                    found[output.request_id] = list(output.outputs[0].token_ids)
            steps += 1
            if steps % 10 == 0 and steps <= 10 * _ABORTED:
                gone = names[8 * (steps // 10) - 1]
                self._engine.abort_request([gone])
                found[gone] = []
        for number in range(_ABORTED):
            found[names[8 * (number + 1) - 1]] = []
        return [found[name] for name in names]

    def switch_on(self) -> None:
        """As after a start."""
        self.scheduler._begin()
        assert self.scheduler._loop is not None, "the plugin does not begin"

    def break_at(self, fault: str) -> Faulty:
        """Make a method fail."""
        part, method = fault.split(".")
        loop = self.scheduler._loop
        target = {
            "loop": loop,
            "order": loop.queue.order,
            "ledger": loop.ledger,
            "fit": loop.fit,
            "writer": self.scheduler._writer,
        }[part]
        faulty = Faulty(fault, getattr(target, method))
        setattr(target, method, faulty)
        return faulty


def main(model: str, result: str) -> None:
    """Break each hook in turn, and write down what became of the engine."""
    engine, notes = Engine(model), Notes()
    logging.getLogger("vllm.holdfast").addHandler(notes)
    expected = engine.answers()
    assert engine.scheduler._loop is not None, notes.lines
    found = {}
    for fault in FAULTS:
        notes.lines.clear()
        scheduler = engine.scheduler
        faulty = engine.break_at(fault)
        given = engine.answers()
        found[fault] = {
            "reached": faulty.calls > _CALLS_BEFORE,
            "mode": "OFF" if scheduler._loop is None else scheduler._loop.mode.name,
            "said": next((line for line in notes.lines if "off," in line), ""),
            "asked": len(expected),
            "finished": len([each for each, wanted in zip(given, expected, strict=True) if len(each) == len(wanted)]),
            "same": given == expected,
            "stock_queue": type(scheduler.waiting).__module__.startswith("vllm."),
            "stock_limits": scheduler.max_num_active_reqs == scheduler._stock_active,
        }
        if fault == "writer.write":
            del scheduler._writer.write
        if scheduler._loop is None:
            engine.switch_on()
    Path(result).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
