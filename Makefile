# make setup   an environment in .venv with all three frameworks (8 GB; only when pyproject.toml has changed); with an
#              NVIDIA driver two, since torch and JAX bring CUDA 13 and TensorFlow CUDA 12: .venv and .venv-tf (14 GB)
# make run     the main job: python -m harness run --framework all
# make test    all tests, on CPU devices
# make test-gpu  the tests that need two GPUs, which they have for themselves: under eight minutes
# make check   ruff, ruff format, pyright
# make approve   published reports and golden files of reports, made anew: then read the diff, and commit it
# make clean   removes the environments and caches; reports stay

comma := ,
PYTHON ?= python3
BIN := .venv/bin
RUN_ARGS ?=
# GPU=1 or GPU=0 on the command line says otherwise
GPU ?= $(if $(wildcard /proc/driver/nvidia/version),1)
override GPU := $(filter-out 0 no false,$(GPU))
STAMP := .venv/.made-from-pyproject$(if $(GPU),-gpu)
# of an environment for the other kind of machine: its frameworks would stay, and see no GPU or the wrong CUDA
OTHER := .venv/.made-from-pyproject$(if $(GPU),,-gpu)
EXTRAS := $(if $(GPU),torch$(comma)jax-cuda$(comma)dev,all$(comma)dev)
TF_STAMP := .venv-tf/.made-from-pyproject

.PHONY: setup run test test-gpu check approve clean
setup: $(STAMP) $(if $(GPU),$(TF_STAMP))

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than Python 3.11; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@test ! -e $(OTHER) || \
	  { echo "make: .venv was made $(if $(GPU),for no GPU,with GPU=1); try: make clean, or GPU=$(if $(GPU),0,1)" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

$(TF_STAMP): pyproject.toml
	$(PYTHON) -m venv .venv-tf
	.venv-tf/bin/python -m pip install --quiet --upgrade pip
	.venv-tf/bin/python -m pip install --quiet --editable '.[tf-cuda]'
	@touch $@

run: setup
	$(BIN)/python -m harness run --framework all $(RUN_ARGS)

# one process more than cores: tests wait for processes that start
test: setup
	$(BIN)/python -m pytest -n $$(( $$(nproc) + 1 )) --dist worksteal -m 'not gpu'

test-gpu: setup
	timeout --foreground -s INT -k 30 480 $(BIN)/python -m pytest -m gpu tests/gpu

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

approve: setup
	$(BIN)/python -m pytest -q tests/test_published.py tests/test_approved.py --approve
	@git status --short reports docs/strategies.md tests/approved

clean:
	rm -rf .venv .venv-tf .pytest_cache .ruff_cache *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
