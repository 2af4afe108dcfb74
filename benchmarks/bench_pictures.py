"""The README's pictures of `holdfast bench`: made by the command itself, against `holdfast emulate` on this machine.

`make bench-pictures` writes them into docs/images, in about five minutes; what the captions say is what this prints.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
HOLDFAST = [sys.executable, "-m", "holdfast.cli.main"]
ENGINE = ["--model=Qwen/Qwen3-8B", "--accelerator=h100", "--port=0"]
LOAD = ["--prompt-tokens=512", "--output-tokens=64", "--length-cv=0.5", "--slo=ttft=500ms,tpot=30ms"]
# The client shares two cores with the engine: errors of this size are small beside what is shown.
PATIENCE = ["--max-client-lag=500ms", "--drain=10s"]
# Few sequences: the engine is full at a rate that a client on the other core can send.
PICTURES = {
    "bench.png": (24, ["--rate=20", "--duration=20s"]),
    "bench-sweep.png": (8, ["--sweep", "--rate=6", "--sweep-trials=8", "--duration=20s"]),
}


@contextmanager
def emulated(sequences: int) -> Iterator[str]:
    """The address of an emulated engine on a free port."""
    command = [*HOLDFAST, "emulate", *ENGINE, f"--max-num-seqs={sequences}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = next((line for line in process.stdout if "serving on port" in line), "")
        found = re.search(r"port (\d+)", told)
        if found is None:
            raise SystemExit("holdfast emulate does not serve: see above")
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait(20)


def main() -> int:
    """Measure and draw; 1 where a measurement was refused, whose picture stays as it was."""
    drawn = [draw(name, *PICTURES[name]) for name in sys.argv[1:] or PICTURES]
    return 0 if all(drawn) else 1


def draw(name: str, sequences: int, load: list[str]) -> bool:
    """Measure an engine that nobody has asked yet, and draw it; whether there is a picture."""
    with emulated(sequences) as url, tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / name
        given = [*LOAD, *PATIENCE, *load]
        print(f"$ holdfast bench --url URL ({sequences} sequences)", *given, flush=True)
        subprocess.run([*HOLDFAST, "bench", "--url", url, *given, "--plot", str(picture)], check=False)
        if picture.is_file():
            shutil.copyfile(picture, IMAGES / name)
        return picture.is_file()


if __name__ == "__main__":
    sys.exit(main())
