"""`python -m harness`."""

import sys

try:
    from harness.cli.app import main
except ModuleNotFoundError as error:
    if (error.name or "").startswith("harness"):
        raise
    message = f"harness: error: {sys.executable} has no {error.name}: run `make setup` and use .venv/bin/python"
    print(message, file=sys.stderr)  # noqa: T201
    sys.exit(3)

main()
