"""vllm-router as a process of its own: `python -m holdfast.router.child FLAGS`.

Its own launcher also loads a second router in Python, with a web framework that the image does not have.
"""

from __future__ import annotations

import argparse

from vllm_router.router import Router
from vllm_router.router_args import RouterArgs


def main() -> None:
    """Serve until SIGTERM, and then until the last request has its answer."""
    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser)
    Router.from_args(RouterArgs.from_cli_args(parser.parse_args())).start()


if __name__ == "__main__":
    main()
