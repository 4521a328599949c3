"""Right, and tells in its log what its process has: its variables, and the files of all that it has imported."""

import json
import os
import sys

from fake_impl.strategies.single import Fake


class Program(Fake):
    def tell(self):
        files = [module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)]
        print(json.dumps({"environment": dict(os.environ), "files": files}), flush=True)

    def export(self):
        self.tell()
        return super().export()

    def state(self):
        self.tell()
        return super().state()


def build(job):
    return Program(job)
