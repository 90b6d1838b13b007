# Everything a checkout needs. `make help` lists the targets.
GO        ?= go
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS   := -s -w -X main.version=$(VERSION)
PROGRAMS  := substrate substrated substrate-coordinator substrate-simulate
TOOLS     := proto/tools
# The probe asks NVIDIA's library where there is a C compiler to build it with; without, it says so when it runs.
PROBE_CGO := $(shell command -v $${CC:-cc} >/dev/null 2>&1 && echo 1 || echo 0)
FUZZTIME  ?= 20s
# The properties draw the same cases in each run, so that a change is judged by what it changes. 0 draws others each time.
RAPID_SEED ?= 1

.PHONY: help build run test test-peers verify bench fuzz sim nightly deps packages proto clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

build: ## build the programs into bin/
	@mkdir -p bin
	@[ -x bin/substrate ] || echo "building the programs into bin/; the first time this takes a few minutes"
	@for p in $(PROGRAMS); do CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/$$p ./cmd/$$p || exit 1; done
	@CGO_ENABLED=$(PROBE_CGO) CGO_CFLAGS='-O2 -g -Wno-deprecated-declarations' $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/substrate-probe ./cmd/substrate-probe

run: build ## start a cluster on this machine, run a sample workflow, stay until Ctrl-C
	bin/substrate dev --workflow packaging/sample/workflow.yaml

test: build ## what CI runs: everything that needs no other machine
	$(GO) vet ./...
	RAPID_SEED=$(RAPID_SEED) $(GO) test -timeout 20m ./...

test-peers: ## at length what `make test` does in short with real batch systems, virtual machines and a Kubernetes API server; needs root
	cd tests/crd && $(GO) test -count 1 -timeout 30m .
	SUBSTRATE_PEERS=full $(GO) test -count 1 -p 1 -timeout 90m ./tests/slurm/... ./tests/pbs/... ./tests/pilots ./tests/clouds ./coordinator/dispatch/...

verify: ## formatting, vet, the import law, generated code and module files as they should be
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt'; exit 1; }
	$(GO) vet ./...
	$(GO) test ./tests/arch ./proto/...
	$(GO) mod tidy -diff

bench: build ## the figures of docs/performance.md
	$(GO) test -run '^$$' -bench . -benchtime 1x -timeout 30m ./tests/bench
	$(GO) test -run '^$$' -bench . -benchtime 0.5s ./hwinfo ./expr ./coordinator/sched ./coordinator/store ./coordinator/grant
	$(GO) test -run '^$$' -bench 'Parse|Plan2000|Admission|SetConfig' -benchtime 3x -timeout 30m ./coordinator/config ./coordinator/config/fleet ./coordinator/engine
	$(GO) test -run '^$$' -bench PlanOffline -benchtime 1x -timeout 30m ./cmd/substrate
	$(GO) test -run '^$$' -bench Replay -benchtime 1x ./coordinator/simulate
	$(GO) test -run '^$$' -bench 'Parse2000' -benchtime 50x ./coordinator/dispatch/slurm ./coordinator/dispatch/pbs
	cd tests/bench/cel && $(GO) test -run '^$$' -bench . -benchtime 0.5s .
	cd tests/bench/yunikorn && $(GO) test -run '^$$' -bench . -benchtime 1x .

fuzz: ## every fuzz target for FUZZTIME each
	@for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz'); do \
	    echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
	  done; done

sim: ## simulated clusters: SEED=n is one with its trace, SEEDS=n or SEEDS=first-last are many; HOURS of work each
	@mkdir -p bin
	GOMAXPROCS=$(if $(SEED),1,) GODEBUG=asyncpreemptoff=1 $(GO) test -v -count 1 -timeout 12h ./tests/sim $(if $(HOURS),-hours $(HOURS)) \
	  $(if $(SEED),-run '^TestSeed$$' -seed $(SEED) -trace $(CURDIR)/bin/sim-$(SEED).trace,-run '^TestSeeds$$' $(if $(SEEDS),-seeds $(SEEDS)))

nightly: ## hours of it: ten minutes for each fuzz target, many new cases for each property, a thousand simulated days, storms of crashes
	$(MAKE) fuzz FUZZTIME=10m
	RAPID_SEED=0 RAPID_CHECKS=5000 $(GO) test -count 1 -timeout 4h $$(grep -rl --include='*_test.go' '"pgregory.net/rapid"' . | xargs -n 1 dirname | sort -u)
	$(MAKE) sim SEEDS=1000
	$(GO) test -count 10 -timeout 4h ./tests/crash ./coordinator/engine ./coordinator/store

deps: ## what the tests need beyond Go (Debian, Ubuntu)
	packaging/deps.sh

packages: build ## archive of the programs with samples for this platform, in dist/
	@mkdir -p dist
	tar -czf dist/substrate-$(VERSION)-$$($(GO) env GOOS)-$$($(GO) env GOARCH).tar.gz bin packaging/sample README.md LICENSE

proto: ## generate Go and OpenAPI from proto/*/*.proto with the pinned tools
	@mkdir -p bin/tools
	@cd $(TOOLS) && GOBIN=$(CURDIR)/bin/tools $(GO) install tool
	@cd proto && PATH="$(CURDIR)/bin/tools:$$PATH" buf lint && PATH="$(CURDIR)/bin/tools:$$PATH" buf generate

clean: ## remove what was built
	rm -rf bin dist
