# make setup   an environment in .venv with all three frameworks (8 GB; only when pyproject.toml has changed)
# make run     the main job: python -m harness run --framework all
# make test    all tests, on CPU devices
# make check   ruff, ruff format, pyright
# make clean   removes .venv and caches; reports stay

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.made-from-pyproject
RUN_ARGS ?=

.PHONY: setup run test check clean
setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than Python 3.11; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[all,dev]'
	@touch $@

run: setup
	$(BIN)/python -m harness run --framework all $(RUN_ARGS)

test: setup
	$(BIN)/python -m pytest -n auto --dist worksteal

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean:
	rm -rf .venv .pytest_cache .ruff_cache *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
