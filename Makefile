# The two commands: `make demo` shows a question answered, `make test` runs all tests. Both install what is missing from
# Debian (packages.txt), build, and run; both are quick when nothing is to do.

MAKEFLAGS += --no-print-directory
CTEST := ctest --output-on-failure --no-tests=error -j 2

.PHONY: help build demo test clients sanitize fuzz packages format includes clean

help:
	@echo "make demo       build, and see a question answered by the small model that comes with Megalith"
	@echo "make build      build/release/megalith"
	@echo "make test       build and run all tests"
	@echo "make clients    the server with the clients that people use, and with load (a part of make test)"
	@echo "make sanitize   the tests under the address, undefined-behaviour and thread sanitizers"
	@echo "make fuzz       the parsers on hostile input, SECONDS (30) for each"
	@echo "make format     put all sources into the project's format"
	@echo "make clean      remove build/"

packages:
	@scripts/install-packages.sh

build: packages
	@cmake --preset release >build-configure.log 2>&1 || { cat build-configure.log; rm -f build-configure.log; exit 1; }
	@rm -f build-configure.log
	@cmake --build --preset release --target megalith

demo: build
	@scripts/demo.sh build/release/megalith

test: packages includes
	@scripts/install-packages.sh clients
	@cmake --preset release
	@cmake --build --preset release
	@cd build/release && $(CTEST)
	@scripts/test-clients.sh

clients: build
	@scripts/install-packages.sh clients
	@scripts/test-clients.sh

sanitize: packages
	@cmake --preset address+undefined
	@cmake --build --preset address+undefined
	@cd build/address+undefined && $(CTEST)
	@cmake --preset thread
	@cmake --build --preset thread --target test_machines test_engine test_server megalith
	@cd build/thread && TSAN_OPTIONS=halt_on_error=1 $(CTEST) -R 'Workers|Waiting|Contract|Engine|Loading|CpuMachine|Failure|Trace|Limits|TheThreadsDoNotMatter|GuessesHaveEqualBits|Http|Routed|Events|Decoder|AnswerThreads|Metrics|RequestLog'
	@scripts/install-packages.sh clients
	@MEGALITH=$(CURDIR)/build/thread/megalith TSAN_OPTIONS=halt_on_error=1 scripts/test-clients.sh load --requests 60 --clients 12

fuzz:
	@scripts/install-packages.sh fuzz
	@scripts/fuzz.sh $(or $(SECONDS),30)

includes:
	@scripts/check-includes.sh

format:
	@find src tests bench -name '*.h' -o -name '*.cc' | xargs clang-format -i

clean:
	rm -rf build
