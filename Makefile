# make setup   an environment in .venv with all three frameworks, at the versions of a lock file (8 GB; only when that
#              or pyproject.toml has changed); with an NVIDIA driver two, since torch and JAX bring CUDA 13 and
#              TensorFlow CUDA 12: .venv and .venv-tf (14 GB)
#              LATEST=1: at the newest versions that pyproject.toml allows; LOCK=measured: at those of published reports
# make locks   the lock files anew, at the newest versions (locks/README.md)
# make run     the main job: python -m harness run --framework all
# make test-quick  the tests that need no framework and start no run: about a minute on two cores
# make test      what most changes need, every strategy of every framework included, on CPU devices: eight minutes
# make test-cpu  all tests on CPU devices of one host; adds planted faults, kills and all that is slow:
#              some 50 minutes
# make test-gpu  the tests that need two GPUs, six at a time: under eight minutes
# make test-hosts  runs over two hosts that are network namespaces, by hand, Slurm and Ray, and ends them in many ways:
#              about twenty minutes, as root; where Slurm is missing (apt-get install slurm-wlm munge) its tests are
#              skipped. Ray comes into an environment of its own, .venv-ray; RAY_PYTHON=PATH takes another that has it
#              and all frameworks, RAY_PYTHON= skips its tests
# make test-all  test-hosts, test-cpu, and where there are GPUs test-gpu, as CI runs them: 70 minutes
# make net     plants every fault of docs/reliability.md, and wants the tests to fail: some twelve minutes on two cores;
#              make net NET=NAME for one guarantee
# make kills  1,000 kills at random moments of runs and resumes of the fake framework: an hour or two; KILLS=100 for
#              fewer, SEED=1 for others
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
override LATEST := $(filter-out 0 no false,$(LATEST))
ifneq ($(filter-out measured,$(LOCK)),)
  $(error LOCK=$(LOCK): there is LOCK=measured alone; without it the lock is that of the Python and the GPUs)
else ifneq ($(and $(LATEST),$(LOCK)),)
  $(error LATEST=1 takes no lock, LOCK=$(LOCK) does: give one of them)
else ifneq ($(if $(GPU),,$(LOCK)),)
  $(error LOCK=$(LOCK) makes two environments, as for GPUs: give GPU=1, too)
endif

# An environment that is there keeps its Python, unless one is named.
MAKER := $(if $(filter file,$(origin PYTHON)),$(or $(wildcard $(BIN)/python),$(PYTHON)),$(PYTHON))
PY := py$(shell $(MAKER) -c 'import sys; print("%d%d" % sys.version_info[:2])' 2>/dev/null)
SYSTEM := $(shell uname -sm | tr ' ' -)
# What each environment is made from: a lock's name, or latest-... Its stamp bears it: one made from something else has
# frameworks of other versions, or such as see no GPU or the wrong CUDA, and they would stay.
FROM := $(if $(LATEST),latest-)$(or $(LOCK),$(if $(GPU),gpu,cpu))-$(PY)
TF_FROM := $(if $(LATEST),latest-)$(or $(LOCK),gpu)-tf-$(PY)
STAMP := .venv/.made-from-$(FROM)
TF_STAMP := .venv-tf/.made-from-$(TF_FROM)
LOCKS := $(if $(filter Linux-x86_64,$(SYSTEM)),$(wildcard locks/*.txt))

# $(1): the environment's folder, $(2): what it is made from, $(3): the extras of pyproject.toml that no lock needs
define make-environment
	@$(MAKER) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(MAKER) is older than Python 3.11; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -n '$(or $(LATEST),$(filter locks/$(2).txt,$(LOCKS)))' || \
	  { echo "make: no lock $(2) for $(SYSTEM); there are: $(or $(basename $(notdir $(LOCKS))),none)." \
	    "Try: make $(if $(LOCK),LOCK=measured PYTHON=python3.12,LATEST=1) $(MAKECMDGOALS)" >&2; exit 2; }
	@test -z '$(filter-out %/.made-from-$(2),$(wildcard $(1)/.made-from-*))' || \
	  { echo "make: $(1) was made from $(patsubst $(1)/.made-from-%,%,$(wildcard $(1)/.made-from-*)), not $(2)." \
	    "Try: make clean; or GPU, LATEST, LOCK and PYTHON as they were then" >&2; exit 2; }
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(MAKER) -m venv $(1)
	$(if $(LATEST),$(1)/bin/python -m pip install --quiet --upgrade pip)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check \
	  $(if $(LATEST),--upgrade --upgrade-strategy eager --editable '.[$(3)]',\
	  --require-hashes --no-deps --requirement locks/$(2).txt)
	$(if $(LATEST),,$(1)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --editable .)
	@touch $(1)/.made-from-$(2)
endef

.PHONY: setup locks run test-quick test test-cpu test-hosts test-gpu test-all net kills check approve clean
setup: $(STAMP) $(if $(GPU),$(TF_STAMP))

$(STAMP): pyproject.toml $(filter locks/$(FROM).txt,$(LOCKS))
	$(call make-environment,.venv,$(FROM),$(if $(GPU),torch$(comma)jax-cuda$(comma)dev,all$(comma)dev))

$(TF_STAMP): pyproject.toml $(filter locks/$(TF_FROM).txt,$(LOCKS))
	$(call make-environment,.venv-tf,$(TF_FROM),tf-cuda)

locks:
	$(PYTHON) -m venv .venv-locks
	.venv-locks/bin/python -m pip install --quiet uv
	.venv-locks/bin/python locks/renew.py

run: setup
	$(BIN)/python -m harness run --framework all $(RUN_ARGS)

# one process more than cores: tests wait for processes that start
PYTEST := $(BIN)/python -m pytest -n $$(( $$(nproc) + 1 )) --dist worksteal

test-quick: setup
	$(PYTEST) -m 'not (gpu or hosts or faults or kills or slow or runs or frameworks)'

test: setup
	$(PYTEST) -m 'not (gpu or hosts or faults or kills or slow)'

# SHARE=2/3: of the faults and of the slow tests, only the second of every three
test-cpu: setup
	$(PYTEST) -m 'not (gpu or hosts)' $(if $(SHARE),--share $(SHARE))

test-gpu: setup
	timeout --foreground -s INT -k 30 480 $(BIN)/python -m pytest -n 6 --dist worksteal -m gpu tests/gpu

RAY_PYTHON ?= .venv-ray/bin/python
test-hosts: setup $(filter .venv-ray/%,$(RAY_PYTHON))
	RAY_PYTHON=$(if $(RAY_PYTHON),$(abspath $(RAY_PYTHON))) $(BIN)/python -m pytest -s -m hosts tests/hosts

# Ray beside the frameworks, which come from .venv
.venv-ray/bin/python: $(STAMP)
	$(BIN)/python -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check ray==2.60.0
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > $$(.venv-ray/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/frameworks.pth
	@touch $@

test-all: test-hosts test-cpu $(if $(GPU),test-gpu)

net: setup
	$(BIN)/python tests/net/break_each.py $(NET)

kills: setup
	$(BIN)/python tests/kills.py --kills $(or $(KILLS),1000) --seed $(or $(SEED),0)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_reliability.py tests/test_wording.py

approve: setup
	$(BIN)/python -m pytest -q tests/test_published.py tests/test_approved.py tests/test_tidy.py --approve
	@git status --short reports docs/strategies.md docs/columns.md tests/approved

clean:
	rm -rf .venv .venv-tf .venv-ray .venv-locks .pytest_cache .ruff_cache *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
