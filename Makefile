# Runs with GNU make 3.81 (macOS) and later; needs a Python >= 3.11 and nothing else.
# PYTHON=... chooses the interpreter, VENV=... the folder of the environment, JOBS=... how many test files run at a time.

VENV ?= .venv
JOBS ?= 2
STAMP = $(VENV)/.installed
BIN = $(VENV)/bin
CODE = pie_mlx cli tui tests

.DEFAULT_GOAL := help
.PHONY: help setup demo test check types lint format bench families contention drill seed-regression docs clean

help: ## Show this list
	@echo 'usage: make TARGET'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-12s %s\n", $$1, $$2 }'

setup: $(STAMP) ## Make the environment (.venv); instant when nothing changed

# The stamp holds the folder's path: the scripts of a moved or copied environment still run the code it came from.
ifneq ($(shell cat "$(STAMP)" 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

$(STAMP): pyproject.toml constraints.txt
	@if [ "$$(cat "$(STAMP)" 2>/dev/null)" != "$(CURDIR)" ] || ! "$(BIN)/python" -c '' 2>/dev/null; then \
		python="$$(scripts/find-python)" && \
		echo "Making $(VENV) with $$("$$python" --version)" && \
		"$$python" -m venv --clear "$(VENV)"; \
	fi
	@echo 'Installing pie-mlx and what it needs (once, a minute or two)'
	@"$(BIN)/python" -m pip install -qq --no-input --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev,serve,blas]'
	@echo "$(CURDIR)" > "$(STAMP)"

demo: $(STAMP) ## Pull the starter model and watch a small tree search
	@"$(BIN)/pie-mlx" pull smollm2-135m
	@mkdir -p .cache && rm -f .cache/demo.jsonl
	@"$(BIN)/pie-mlx" tot run --model smollm2-135m --strategy beam --breadth 3 --beam 2 --depth 3 \
		--max-tokens 32 --seed 7 --trace .cache/demo.jsonl 'How could a small town use less water in a dry summer?'
	@echo
	@echo 'Next, try (in this folder):'
	@echo '  $(BIN)/pie-mlx chat                          talk; /fork branches the conversation'
	@echo '  $(BIN)/pie-mlx tot view .cache/demo.jsonl    walk through the tree above'
	@echo '  $(BIN)/pie-mlx tui                           chat, tree and page map on one screen'
	@echo '  $(BIN)/pie-mlx --help                        everything else'

# A file's tests stay together: they share an engine. The longest file has few tests and must not come last.
# More than two jobs would each hold a model, and the threads of one job's matrix products would take the other's core.
test: check ## Everything a change must pass: check, then the tests
	@OMP_NUM_THREADS=1 "$(BIN)/pytest" --numprocesses "$(JOBS)" --dist loadfile --no-loadscope-reorder

check: lint types ## Style, layers and types

lint: $(STAMP) ## Format, rules and layers
	"$(BIN)/ruff" format --check .
	"$(BIN)/ruff" check .
	"$(BIN)/lint-imports"

types: $(STAMP) ## mypy --strict on code and tests
	"$(BIN)/mypy"

format: $(STAMP) ## Format, and mend what ruff can mend
	"$(BIN)/ruff" format .
	"$(BIN)/ruff" check --fix .

bench: $(STAMP) ## Measure against mlx-lm on this machine
	@"$(BIN)/pie-mlx" bench all --baseline mlx-lm

families: $(STAMP) ## Compare every architecture with mlx-lm; write docs/models.md
	@"$(BIN)/python" scripts/families.py

contention: $(STAMP) ## A million operations under pressure, and the scenarios; a few minutes
	@"$(BIN)/pytest" tests/contention tests/engine/test_faults.py
	@"$(BIN)/python" tests/contention/soak.py

drill: $(STAMP) ## Sixteen HTTP clients on a small pool, a third of them leaving: ten minutes, then three on a model
	@PIE_DRILL_S=600 "$(BIN)/pytest" tests/engine/server/test_drill.py --timeout 1200
	@"$(BIN)/python" scripts/http_drill.py --seconds 180

seed-regression: $(STAMP) ## One search in pools of 64, 40, 24 and 6 pages on the starter model; five minutes
	@"$(BIN)/python" scripts/seed_regression.py

docs: $(STAMP) ## Write docs/cli.md from the program's help
	@"$(BIN)/python" scripts/cli_page.py

clean: ## Remove the environment, caches and builds (not the pulled models)
	rm -rf "$(VENV)" build dist .cache .coverage htmlcov .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
