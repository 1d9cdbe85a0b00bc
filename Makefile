# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Whatever the surroundings say: without its compiled files each process that a test starts compiles the product anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup run test check bench fuzz commands clocks nodes lose-machine slow-links clean
.DEFAULT_GOAL := run

# pip, not uv: see docs/decisions on installing torch.
$(VENV)/.run-ready: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing ringrift and what learning needs into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[train]'
	@touch $@

$(VENV)/.dev-ready: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing ringrift and its test tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.run-ready

$(VENV)/.bench-ready: $(VENV)/.dev-ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,bench]'
	@touch $@

setup: $(VENV)/.dev-ready

run: $(VENV)/.run-ready
	$(BIN)/ringrift run

# One process for the unit tests, and three for all others: those mostly wait for real processes, and each takes the
# next file that none of them has begun. Their lines come after those of the unit tests. What `make check` runs is left out.
PYTEST = $(BIN)/python -m pytest
CHECKED = tests/test_tidy.py tests/test_ceilings.py
SHARED = .pytest_cache/shared
SHARING = -o console_output_style=classic --share=$(SHARED) tests --ignore=tests/unit $(CHECKED:%=--ignore=%)
test: $(VENV)/.dev-ready
	@rm -rf $(SHARED); mkdir -p $(SHARED); \
	for part in 1 2 3; do \
	  $(PYTEST) -o cache_dir=.pytest_cache/$$part $(SHARING) > .pytest_cache/$$part.log 2>&1 & parts="$$parts $$!"; \
	done; \
	$(PYTEST) tests/unit; failed=$$?; number=0; \
	for part in $$parts; do \
	  number=$$((number + 1)); tail -n +1 -f --pid=$$part .pytest_cache/$$number.log; \
	  wait $$part || failed=1; \
	done; \
	exit $$failed

# A real worker that alters its games, among honest ones; the simulated form is part of `make test`.
.PHONY: honest
honest: $(VENV)/.dev-ready
	RINGRIFT_TEST_CHEAT=1 nice $(BIN)/python -m pytest tests/security/test_hostile_worker.py tests/simulation/test_dishonest_workers.py

check: $(VENV)/.dev-ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(PYTEST) -q -p no:cacheprovider $(CHECKED)

# Every reader of outside data (or FUZZ_TARGETS="shard npz") for FUZZ_S seconds each; see tests/fuzz/README.md.
FUZZ_S ?= 60
FUZZ_TARGETS ?= --all
FUZZ_PARALLEL ?= 1
$(VENV)/.fuzz-ready: $(VENV)/.dev-ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,fuzz]'
	@touch $@

fuzz: $(VENV)/.fuzz-ready
	nice $(BIN)/python -m tests.fuzz $(FUZZ_TARGETS) --seconds $(FUZZ_S) --parallel $(FUZZ_PARALLEL)

# How machines of EFFORT_SLOTS divide their time while slots and GPUs come and go, in simulated time; see docs/effort.md.
EFFORT_SLOTS ?= 1 2 16 64 256 1000
EFFORT_CONFIGS ?= 1 3 12
.PHONY: effort
effort: $(VENV)/.dev-ready
	nice $(BIN)/python scripts/draw_effort.py --slots $(EFFORT_SLOTS) --configs $(EFFORT_CONFIGS) --out docs/learning

# Wall clocks that are set by a day, in each process of a run; see docs/survival.md.
CLOCK_MINUTES ?= 10
clocks: $(VENV)/.dev-ready
	nice $(BIN)/python scripts/step_clocks.py --minutes $(CLOCK_MINUTES)

# A run whose machine is wiped so often and comes back from its archive; see docs/survival.md.
ROUNDS ?= 20
lose-machine: $(VENV)/.dev-ready
	$(BIN)/python scripts/lose_machine.py --rounds $(ROUNDS)

# A file of 2 MB over a line of 100 kbit/s, by every way.
slow-links: $(VENV)/.dev-ready
	RINGRIFT_SLOW_LINKS_REAL=1 $(BIN)/python -m pytest -q tests/integration/test_data_slow_links.py

bench: $(VENV)/.bench-ready
	$(BIN)/python benchmarks/run_all.py

# Random command lines from what --help offers: no traceback, no hang.
COMMAND_LINES ?= 2000
commands: $(VENV)/.dev-ready
	nice $(BIN)/python scripts/random_commands.py --lines $(COMMAND_LINES)

# Three to five nodes that are killed, wiped and cut off while disks fill: no copy too few by our doing.
NODES_S ?= 600
NODES_SEED ?= 1
nodes: $(VENV)/.dev-ready
	nice $(BIN)/python scripts/data_nodes.py --seconds 120 --bug believes-receipts
	nice $(BIN)/python scripts/data_nodes.py --seconds 60 --mixed
	nice $(BIN)/python scripts/data_nodes.py --seconds $(NODES_S) --seed $(NODES_SEED)

# An hour on two cores: every kind of durable file damaged in every way, 200 bits of each. It goes on where it was ended.
.PHONY: damage
damage: $(VENV)/.dev-ready
	mkdir -p build
	$(BIN)/python scripts/damage_sweep.py --flips 200 --parallel 2 --results build/damage.jsonl
	$(BIN)/python scripts/damage_sweep.py --results build/damage.jsonl --table docs/damage.md

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
