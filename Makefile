# Every target sets up what it needs, from nothing: Linux, Python 3.10 to 3.13, cmake, a C++
# compiler. `make help` lists them.
#   PYTHON=PATH   the interpreter; otherwise the first fitting one is taken
#   TORCH=REQ     the torch to install, for example TORCH='torch==2.8.0'
#   VIDEO=PATH    make demo: your own recording instead of the rendered scene
#   CLIP=PATH     make train-nano and eval-nano: film of real people (OpenCV's vtest.avi)
#   RUN=FOLDER    make train-nano: where the run lives
#   ARGS=...      more options for what a target runs

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

ROOT := $(CURDIR)
VENV := $(ROOT)/.venv
PYTHON ?= $(shell scripts/find_python 2>/dev/null)
TORCH ?= $(shell grep '^torch==' constraints.txt)
VIDEO ?=
CLIP ?=
RUN ?= runs/nano
ARGS ?=

# Optional recordings and reference outputs that some tests use; they skip without.
ifneq ($(wildcard ../shared/golden/.),)
export PHOTON_SHARED ?= $(abspath ../shared)
endif
# Tests and the demo keep to this machine and out of the default domain.
export ROS_AUTOMATIC_DISCOVERY_RANGE ?= LOCALHOST
export ROS_DOMAIN_ID ?= $(shell echo $$((1 + $$$$ % 100)))
export ROS_LOG_DIR ?= $(ROOT)/log/ros
export OMP_NUM_THREADS ?= 1

IN_ENV := source scripts/env.sh &&

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

$(VENV)/.ready: scripts/setup_env scripts/fix_ros_wheels.py constraints.txt
	@test -n "$(PYTHON)" || scripts/find_python
	scripts/setup_env "$(PYTHON)" "$(TORCH)"

# Symbolic links, so that an edit of a source file needs no build.
install/.built: $(VENV)/.ready CMakeLists.txt package.xml \
  $(wildcard msg/*.msg srv/*.srv action/*.action launch/*.py config/* rviz/*)
	@printf '\n== messages and package\n'
	$(IN_ENV) colcon build --symlink-install --packages-select photon_ros \
	  --cmake-args -DPython3_EXECUTABLE=$(VENV)/bin/python -DBUILD_TESTING=OFF
	touch $@

.PHONY: setup build
setup: $(VENV)/.ready  ## the virtual environment
build: install/.built  ## the messages and the ROS package, by colcon

.PHONY: demo
demo: install/.built  ## camera to detections over DDS, with a report (VIDEO=PATH for your own)
	@$(IN_ENV) python scripts/demo.py --out demo_out $(if $(VIDEO),--video "$(VIDEO)")

.PHONY: lint check test ros-test gpu-test
lint: $(VENV)/.ready  ## format, style, types, imports
	@$(IN_ENV) ruff format --check .
	ruff check .
	mypy
	lint-imports

check: lint  ## lint and the tests that need neither ROS nor a GPU
	@$(IN_ENV) python -m pytest -m "not ros and not gpu" $(ARGS)

test: lint install/.built  ## everything that needs no GPU
	@$(IN_ENV) python -m pytest -m "not gpu" $(ARGS)

ros-test: install/.built  ## the tests over real DDS
	@$(IN_ENV) python -m pytest -m ros $(ARGS)

gpu-test: $(VENV)/.ready  ## the tests that need a CUDA device
	@$(IN_ENV) python -m pytest -m gpu $(ARGS)

.PHONY: lower-bounds
lower-bounds:  ## tests with the least versions allowed (python3.10; fetches some 3 GB of torch)
	@scripts/lower_bounds $(ARGS)

.PHONY: mutants longrun
mutants: $(VENV)/.ready  ## every safety edge of the engine removed in turn; all must be noticed
	@$(IN_ENV) python -m scripts.mutants $(ARGS)

longrun: $(VENV)/.ready  ## random work on the hostile device; ARGS='--steps N --seed S'
	@$(IN_ENV) python -m scripts.longrun $(ARGS)

.PHONY: gpu-check
gpu-check: $(VENV)/.ready  ## equality, sync, graphs, leaks and timings on a CUDA device
	@$(IN_ENV) python -m scripts.gpu_check $(ARGS)

.PHONY: format
format: $(VENV)/.ready  ## rewrite the sources in the house format
	@$(IN_ENV) ruff format . && ruff check --fix .

.PHONY: golden
golden: $(VENV)/.ready  ## compare with the reference outputs in DIR=PATH
	@test -n "$(DIR)" || { echo "give the folder: make golden DIR=PATH" >&2; exit 2; }
	$(IN_ENV) python -m photon_ros golden "$(DIR)"

.PHONY: train-nano train-nano-smoke eval-nano
train-nano: $(VENV)/.ready  ## train the nano model; goes on where it stopped
	@$(IN_ENV) python -m training.train --out "$(RUN)" $(if $(CLIP),--clip "$(CLIP)") $(ARGS)

train-nano-smoke: $(VENV)/.ready  ## a dozen small training steps, to see that it works
	@rm -rf runs/smoke
	$(IN_ENV) python -m training.train --out runs/smoke --smoke $(ARGS)

eval-nano: $(VENV)/.ready  ## score the nano model on rendered scenes
	@$(IN_ENV) python -m training.evaluate $(if $(CLIP),--clip "$(CLIP)") $(ARGS)

.PHONY: clean distclean
clean:  ## remove build products, keep the environment
	rm -rf build install log demo_out .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -path './.venv*' -prune -o -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## remove the environment, too
	rm -rf .venv .venv-lower
