#!/bin/sh
# setup.sh VENV: makes the virtual environment and installs what the project needs, quietly: progress goes to
# standard error (so that `make -s` prints only the command's own output), details to VENV/setup.log.
set -eu
venv=$1
say() { echo "setup: $*" >&2; }

python=
for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    say "Python 3.11 or newer was not found; install it (apt install python3, brew install python@3.12) or set PYTHON=/path/to/python3"
    exit 6
fi

if [ ! -x "$venv/bin/python" ]; then
    say "making $venv with $("$python" --version)"
    if ! "$python" -m venv "$venv" >"${TMPDIR:-/tmp}/umqtt-venv.$$" 2>&1; then
        rm -rf "$venv"
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
            say "installing python3-venv with apt"
            { apt-get -q update && apt-get -q -y install python3-venv; } >/dev/null 2>&1 || true
        fi
        if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
            rm -rf "$venv"
            say "could not make a virtual environment; on Debian and Ubuntu: apt install python3-venv"
            exit 6
        fi
    fi
    rm -f "${TMPDIR:-/tmp}/umqtt-venv.$$"
fi

log=$venv/setup.log
say "installing packages (a minute or two, and 2.5 GB; details in $log)"
if ! "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --editable '.[test]' >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    say "pip could not install the packages; the whole log is in $log"
    exit 6
fi

# The boards' own API for the type checks: the two packages hold files of the same names, so each has a folder.
if ! "$venv/bin/python" host_tests/typechecks/get_stubs.py >>"$log" 2>&1; then
    say "the boards' type stubs could not be installed; their check will be skipped (details in $log)"
fi

# Spark needs Java 17 or newer. Where it is missing, install it if that can be done without asking.
java_version() {
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}
version=$(java_version || true)
if [ "${version:-0}" -lt 17 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing Java with apt"
        {
            apt-get -q update
            apt-get -q -y install openjdk-17-jre-headless || apt-get -q -y install default-jre-headless
        } >>"$log" 2>&1 || true
        version=$(java_version || true)
    fi
    if [ "${version:-0}" -lt 17 ]; then
        say "Java 17 or newer is missing and Spark needs it: apt install openjdk-17-jre-headless, or brew install openjdk@17"
        say "(everything else works without it)"
    fi
fi
if [ "${version:-0}" -ge 17 ]; then
    say "preparing Spark's start (half a minute)"
    "$venv/bin/umqtt" ingest --prepare >>"$log" 2>&1 || say "that failed, so Spark starts slower (details in $log)"
fi
