"""Folders for new results: made, or refused with what is wrong with them."""

from __future__ import annotations

import errno
import itertools
import os
import re
from datetime import datetime
from pathlib import Path

from harness.spec.errors import MachineUnfit, UsageError

LOGS = "logs"


def create_run_folder(out: Path | None, *, root: Path, slug: str, now: datetime) -> Path:
    """Make the folder of a new run: `out`, or root/<time>-<slug>.

    Raises as create_folder, and MachineUnfit if there can be no folder in `root`.
    """
    if out is not None:
        return create_folder(out, LOGS)
    folder = _unused(root / f"{now:%Y%m%d-%H%M%S}-{re.sub(r'[^a-z0-9_.-]+', '-', slug.lower())[:60]}")
    try:
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        return folder.resolve()
    except OSError as error:
        raise _machine_unfit(folder, error) from error


def _unused(folder: Path) -> Path:
    """A folder that this call has made: `folder`, or FOLDER-2 and so on where other runs began in the same second."""
    candidate = folder
    for attempt in itertools.count(2):
        try:
            candidate.mkdir(parents=True)
            break
        except FileExistsError:
            candidate = folder.with_name(f"{folder.name}-{attempt}")
        except OSError:  # the caller says what is wrong with it
            break
    return candidate


def create_folder(folder: Path, within: str = "") -> Path:
    """Make a folder for new results, and one within it.

    An empty folder within it is no reason to refuse: a run that was killed before it wrote run.json leaves one. Raises
    as check_out, and MachineUnfit if the disk is full.
    """
    check_out(folder, within)
    try:
        (folder / within).mkdir(parents=True, exist_ok=True)
        return folder.resolve()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise _machine_unfit(folder, error) from error
        raise UsageError(f"--out {folder}: cannot be written: {error.strerror}; name another folder") from error


def check_out(folder: Path, within: str = LOGS) -> None:
    """Raises UsageError for a folder that cannot be made, or that holds more than an empty folder `within` it."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out {folder}: is a file; name a new or empty folder")
        if folder.exists() and not _is_empty(folder, but_for=within):
            raise UsageError(f"--out {folder}: already holds files; name a new or empty folder")
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot be read: {error.strerror}; name another folder") from error
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise UsageError(f"--out {folder}: {existing} is not a writable folder; name another one")


def _machine_unfit(folder: Path, error: OSError) -> MachineUnfit:
    return MachineUnfit(f"cannot write to {folder}: {error.strerror}; choose another folder with --out")


def _is_empty(folder: Path, *, but_for: str) -> bool:
    """Whether a folder holds nothing, or only an empty folder of this name."""
    left = [path for path in folder.iterdir() if path.name != but_for or path.is_symlink() or not path.is_dir()]
    within = folder / but_for
    return not left and not (but_for and within.is_dir() and any(within.iterdir()))
