"""The parser of `holdfast catalog`."""

from __future__ import annotations

import argparse

from holdfast.cli.commands import COMMANDS

_EXAMPLE = """examples:
  holdfast catalog
  holdfast catalog h100
  holdfast catalog --model Qwen/Qwen3-8B-AWQ --accelerator h100 --resource nvidia.com/mig-3g.40gb

Exit 0: listed, or the name is known. 1: a name is unknown; the first estimate of its capacity is then a guess."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "catalog",
        help=COMMANDS["catalog"],
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a model or an accelerator, such as Qwen/Qwen3-8B or h100"
    )
    parser.add_argument("--model", metavar="URI", help="model.uri of an LLMService")
    parser.add_argument("--quantization", metavar="METHOD", help="its model.quantization")
    parser.add_argument("--kv-cache-dtype", metavar="TYPE", help="vLLM's --kv-cache-dtype")
    parser.add_argument("--accelerator", metavar="NAME", help="accelerators[].name of an LLMService")
    parser.add_argument("--product", metavar="VALUE", help="the label nvidia.com/gpu.product of its nodes")
    parser.add_argument("--resource", default="", help="its accelerators[].resource")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
