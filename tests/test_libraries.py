"""Versions of CUDA's libraries are those that are loaded."""

from __future__ import annotations

import importlib.util

import pytest
from conftest import TESTS

from harness.worker import libraries


def test_versions_are_read_as_each_library_writes_them():
    assert libraries.words(13000, (1000, 10)) == "13.0"
    assert libraries.words(12090, (1000, 10)) == "12.9"
    assert libraries.words(91900, (10000, 100)) == "9.19.0"
    assert libraries.words(22809, (10000, 100)) == "2.28.9"


def test_only_the_libraries_themselves_are_asked_and_none_can_fail_a_trial(tmp_path, monkeypatch):
    asked = []

    class Library:
        def __init__(self, path):
            asked.append(path)
            if "broken" in path:
                raise OSError(path)

        def cudnnGetVersion(self):
            return 91900 if "cu13" in asked[-1] else 90100

    monkeypatch.setattr(libraries.ctypes, "CDLL", Library)
    maps = tmp_path / "maps"
    line = "7f00-7f01 r--p 0 00:1 1    "
    files = ["/cu13/libcudnn.so.9", "/cu12/libcudnn.so.9", "/cu13/libcudnn_graph.so.9", "/broken/libcudart.so.12"]
    files.append("/a folder/libcudnn.so.8")  # whose own 9.1.0 is one of two
    files += ["/x/libcudart-1a2b3c.so.12", "/x/libnccl.so.2", "/x/libc.so.6"]
    maps.write_text("".join(f"{line} {file}\n" for file in [*files, *files]) + f"{line}\n")
    assert libraries.loaded(maps) == {"cuDNN": "9.1.0 and 9.19.0"}  # the others have no such function here
    assert sorted(asked) == sorted(file for file in files if "graph" not in file and "libc." not in file)
    assert libraries.loaded(tmp_path / "none") == {}


@pytest.mark.runs
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="without PyTorch nothing loads them")
def test_what_torch_loads_is_what_torch_says():
    import subprocess
    import sys

    code = """
import torch
from harness.worker import libraries
found = libraries.loaded()
if torch.version.cuda:
    assert found["CUDA runtime"] == torch.version.cuda, found
    assert found["cuDNN"].split(".")[0] == str(torch.backends.cudnn.version() // 10000), found
    assert found["NCCL"] == ".".join(map(str, torch.cuda.nccl.version())), found
else:
    assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
