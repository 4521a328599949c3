"""`python -m harness`."""

import os
import sys

# Plug-ins of Pydantic come from any package that is installed; a broken one would end this program.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"

try:
    from harness.cli.app import main
except KeyboardInterrupt:
    sys.exit(130)
except ModuleNotFoundError as error:
    if (error.name or "").startswith("harness"):
        raise
    message = f"harness: error: {sys.executable} has no {error.name}: run `make setup` and use .venv/bin/python"
    print(message, file=sys.stderr)  # noqa: T201
    sys.exit(3)

main()
