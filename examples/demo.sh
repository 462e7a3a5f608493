#!/usr/bin/env bash
# Show d2a at work in a throw-away bank: one document, three questions, the last of them without an answer.
# Run by `make demo`; d2a must be on the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

bank=$(mktemp -d "${TMPDIR:-/tmp}/d2a-demo.XXXXXX")
trap 'rm -rf "$bank"' EXIT
export D2A_BANK="$bank"

# Echo a command, then run it; 3 is d2a's exit code for "the documents do not say".
run() {
    printf '\n$ %s\n' "$(printf '%q ' "$@" | sed "s/\\\\ / /g")"
    "$@" || { code=$?; [ "$code" -eq 3 ] && echo "(exit code 3: unanswerable)" || exit "$code"; }
}

run d2a ingest examples/eddystone.pdf
run d2a ask "How many granite blocks does the fourth lighthouse contain?"
run d2a ask "How old was the keeper whose throat molten lead ran down?"
run d2a ask "What is the boiling point of liquid nitrogen?"
