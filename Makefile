# Everything a user runs starts here. `make demo` and `make test` set up what they need themselves.
VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=
BASE ?=
VERSION ?=
KEY ?=
PACKAGE ?= umqtt-robust
PORT ?=
# Two small tools are enough for `make mip`.
MIP_READY := $(or $(wildcard $(VENV)/.ready),build/mip-venv/.ready)
# Each of the hundreds of processes of a test run would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE
# A file's tests share what is slow to start, so a worker takes whole files, the longest first. Most of a worker's time is
# waiting, so there are more of them than cores.
PARALLEL := -n 5 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup mip demo check test test-costs size-of-things driver-table lint types bench bench-client bench-broker bench-ingest prove-tests prove-steady prove-client prove-flash prove-rp2040 prove-firmware prove-broker prove-simulation prove-ingest prove-cluster fuzz docs pictures release clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Make .venv and install what is missing

$(VENV)/.ready: pyproject.toml tools/setup.sh
	@sh tools/setup.sh $(VENV)
	@touch $@

mip: $(MIP_READY) ## Put the client on the board at the cable, as .mpy for its MicroPython (PACKAGE=umqtt-robust-full PORT=/dev/ttyACM0)
	@PYTHONPATH=tools:. $(dir $(MIP_READY))bin/python tools/mip.py "$(PACKAGE)" "$(PORT)"

build/mip-venv/.ready: pyproject.toml
	@$${PYTHON:-python3} -m venv build/mip-venv
	@build/mip-venv/bin/python -m pip install --disable-pip-version-check --quiet '.[mip]'
	@touch $@

demo: setup ## Boards, devices, broker, collector and Spark on this machine, and the count at the end
	@$(VENV)/bin/umqtt demo $(ARGS)

prove: setup ## Everything breaks by a seed for ten minutes, then every reading is counted (ARGS="--minutes M --seed S")
	@$(VENV)/bin/umqtt prove $(ARGS)

check: setup lint ## Lint, types and the tests that matter most for what changed (BASE=REVISION)
	@$(PY) -m pytest $(PARALLEL) $$($(PY) host_tests/running/affected.py $(BASE)) $(ARGS)

test: setup lint ## Lint, types and every test
# Without its archive of classes each start of Spark takes twice the CPU. Setup makes it, but .venv may outlive the cache.
	@$(VENV)/bin/umqtt ingest --prepare >/dev/null || true
	@$(PY) -m pytest $(PARALLEL) --tiers=0,1,2,smoke $(ARGS)

test-costs: setup ## Run every test and write what each file costs into host_tests/running/costs.tsv
	@$(PY) -m pytest $(PARALLEL) --tiers=0,1,2,smoke --durations=40 --junit-xml=.costs.xml $(ARGS)
	@$(PY) host_tests/running/costs.py .costs.xml

size-of-things: ## Count the lines of each part and write the table of docs/architecture.md
	@python3 tools/size_of_things.py

driver-table: setup ## Measure the drivers and write the table of docs/sensors.md
	@$(PY) tools/driver_table.py

prove-tests: setup ## Every test in full; tier 3, which needs a machine for itself, one at a time (an hour)
	@UMQTT_FULL_SWEEPS=1 $(PY) -m pytest --tiers=3 $(ARGS)
	@UMQTT_FULL_SWEEPS=1 $(PY) -m pytest $(PARALLEL) --tiers=0,1,2 $(ARGS)

prove-steady: setup ## The tests again and again on a machine that is busy and slow at random (ARGS="--json --seed N")
	@$(PY) host_tests/running/steady.py $(ARGS)

lint: setup ## ruff
	@$(VENV)/bin/ruff check --quiet .

types: setup ## pyrefly, which `make check` and `make test` run as a test
	@$(VENV)/bin/pyrefly check

bench: setup ## All three benches in one run, as one page of Markdown (ARGS="--quick --peers DIR")
	@$(PY) host_tests/bench/bench.py $(ARGS)

bench-client: setup ## The client against its figures and its peers (ARGS="--quick --json --peers DIR")
	@$(PY) host_tests/bench/client.py $(ARGS)

bench-broker: setup ## The broker against its figures and its peers (ARGS="--quick --json --peers DIR")
	@$(PY) host_tests/bench/broker.py $(ARGS)

bench-ingest: setup ## The ingestion against its figures and its peers (ARGS="--quick --json --peers DIR")
	@$(PY) host_tests/bench/ingest.py $(ARGS)

prove-client: setup ## Every law of the client in full: every cut, split and order
	@UMQTT_FULL_SWEEPS=1 $(PY) -m pytest -q host_tests/laws host_tests/bundle \
	    host_tests/transports/test_waiting_messages.py host_tests/transports/test_network_faults.py $(ARGS)

prove-flash: setup ## The flash store: a million power cuts, 200 kills, wear (ARGS="--quick --json --seed N")
	@$(PY) host_tests/flash/prove.py $(ARGS)

prove-rp2040: setup ## The client on a chip's own image, in an emulator: power cuts, laws, and a table of costs (IMAGE=FILE.uf2, ARGS="--cuts N --seed N --laws LIST --peer FILE --json")
	@test -n "$(IMAGE)" || { echo "IMAGE names no image: make prove-rp2040 IMAGE=FILE.uf2, that of RPI_PICO from micropython.org/download" >&2; exit 2; }
	@$(PY) host_tests/flash/prove_rp2040.py "$(IMAGE)" $(ARGS)

prove-firmware: setup ## The firmware: attacks refused, a fleet of 20, every power cut of updates, commands and rotations, 24 virtual hours, boots with a backlog
	@$(PY) -m pytest -q -rP -k micropython host_tests/unit/test_app_attacks.py
	@UMQTT_FULL_SWEEPS=1 $(PY) -m pytest -q -rP host_tests/end_to_end/test_firmware_fleet.py
	@UMQTT_FULL_SWEEPS=1 $(PY) -m pytest -q host_tests/unit/test_app_update.py host_tests/unit/test_app_commands_power.py \
	    host_tests/unit/test_app_rotation.py host_tests/unit/test_app_settings_trial.py \
	    host_tests/laws/test_app_day.py host_tests/end_to_end/test_firmware_updates.py host_tests/bundle/test_app_bundle.py \
	    host_tests/boards/test_backlog_boot.py $(ARGS)

prove-broker: setup ## The broker killed 50 times under load of MQTT 3.1.1 and 50 of MQTT 5, counted; traced runs; attacks (ARGS="--quick --json --seed N")
	@$(PY) host_tests/broker/prove.py $(ARGS)

prove-simulation: setup ## Broker and clients in one process in virtual time, each world twice, by seeds (ARGS="--seeds N --seed FIRST")
	@$(PY) host_tests/simulation/simulate.py --seeds 1000 --twice $(ARGS)
	@$(PY) host_tests/simulation/planted_simulation.py

prove-ingest: setup ## The way into the tables killed 50 times under load, counted; a traced run (ARGS="--quick --json --seed N")
	@$(PY) host_tests/spark/prove.py $(ARGS)
	@UMQTT_FULL_SWEEPS=1 $(PY) -m pytest -q host_tests/spark/pipeline/test_alert_delivery.py

prove-cluster: setup ## Nodes of RabbitMQ, of NATS, and shards killed, stopped and lost under boards and devices, rows counted (ARGS="--quick --json --seed N")
	@$(PY) host_tests/clusters/prove.py $(ARGS)

fuzz: setup ## The packet path with atheris, which is installed for it (ARGS="--minutes M --corpus DIR")
	@$(PY) -m pip install --disable-pip-version-check --quiet "atheris>=2.3"
	@$(PY) host_tests/broker/fuzz_broker.py $(ARGS)

docs: setup ## The documentation as a site in build/site; a dead link ends it
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build $(ARGS)
	@echo "build/site is the site; to read it with search: python3 -m http.server --directory build/site"

pictures: setup ## Take the pictures of the README anew, with chromium
	@$(PY) host_tests/docs/draw_pictures.py

release: setup ## Wheel, sdist, mip index and their hashes in dist, changelog section, tag (VERSION=0.3.0, KEY=FILE to sign)
	@$(PY) tools/release.py "$(VERSION)" $(if $(KEY),--key "$(KEY)")

clean: ## Remove what setup and the demo made
	rm -rf $(VENV) umqtt-demo build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
