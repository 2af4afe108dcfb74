"""`python -m e2e.statuspage`: serve the status page of a played load, take its pictures, install the browser."""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

WITHOUT_IMAGE = (5,)
"""The service that shows what a page says of a missing image."""
IMAGES = Path(__file__).parents[2] / "docs" / "images"


def main(arguments: list[str]) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m e2e.statuspage", description=__doc__)
    parser.add_argument("command", choices=("serve", "pictures", "install"))
    parser.add_argument("--port", type=int, default=8090, help="where to serve (default: 8090)")
    parser.add_argument("--services", type=int, default=12, help="how many services are shown (default: 12)")
    options = parser.parse_args(arguments)
    if options.command == "install":
        from e2e.statuspage.browser import install_missing

        install_missing()
    elif options.command == "serve":
        _serve(options.services, options.port)
    else:
        _pictures(options.services)
    return 0


def _serve(services: int, port: int) -> None:
    from e2e.statuspage.played import board_of, play
    from e2e.statuspage.served import served

    with served(board_of(play(), time.time(), services, WITHOUT_IMAGE), port) as url:
        print(f"the status page of a played load: {url} (ends with Ctrl-C)", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


def _pictures(services: int) -> None:
    from e2e.statuspage.browser import browser, resize
    from e2e.statuspage.played import board_of, play
    from e2e.statuspage.served import served
    from e2e.statuspage.views import opened, picture

    with (
        tempfile.TemporaryDirectory() as profile,
        served(board_of(play(), time.time(), services, WITHOUT_IMAGE)) as url,
        browser(Path(profile)) as driver,
    ):
        resize(driver, 1280, 700)
        opened(driver, url, "api/services")
        picture(driver, IMAGES / "status-page.png")
        resize(driver, 1280, 1560)
        opened(driver, f"{url}#/prod/chat", "api/services/prod/chat")
        picture(driver, IMAGES / "status-page-service.png")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
