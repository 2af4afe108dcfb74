"""Whether the files that options name can be read or written: checked before anything is measured or played."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from holdfast.twin.scenarios.inputs import BadInput


def check_files(arguments: argparse.Namespace, *names: str) -> None:
    """BadInput where one of these options names no file that can be read."""
    for name in names:
        path = getattr(arguments, name)
        if path is not None and (not os.access(path, os.R_OK) or path.is_dir()):
            raise BadInput(f"--{name} {path}: the file does not exist or cannot be read: check the path")


def check_folders(arguments: argparse.Namespace, *names: str) -> None:
    """BadInput where a file of one of these options cannot be written: checked before anything is measured."""
    for name in names:
        given = getattr(arguments, name)
        for path in given if isinstance(given, list) else [given]:
            if path in (None, "-"):
                continue
            if Path(path).is_dir():
                raise BadInput(f"--{name} {path}: is a folder: give a file")
            if not Path(path).absolute().parent.is_dir():
                raise BadInput(f"--{name} {path}: the folder does not exist: create it first")
