#!/usr/bin/env bash
# Show d2a at work in a throw-away bank: one document, three questions. The first needs one sentence of the
# document, the second two, and the third has no answer in it.
# `make demo` runs this; elsewhere d2a must be on the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

bank=$(mktemp -d "${TMPDIR:-/tmp}/d2a-demo.XXXXXX")
trap 'rm -rf "$bank"' EXIT
export D2A_BANK="$bank" D2A_PRESET=smollm2

ask() {
    printf '\n$ d2a ask "%s"\n' "$1"
    d2a ask "$1" || {
        code=$?
        [ "$code" -eq 3 ] || exit "$code"
        echo "(exit code 3: the document does not say)"
    }
}

echo '$ d2a ingest examples/eddystone.pdf'
d2a ingest examples/eddystone.pdf
ask "How many granite blocks does the fourth lighthouse contain?"
ask "How old was the keeper into whose throat molten lead ran?"
ask "What is the boiling point of liquid nitrogen?"
