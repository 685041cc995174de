#!/bin/sh
# Create the virtual environment $1 and install Interlock into it, editable, with every extra.
# Uses uv when it is on PATH, and otherwise the newest Python from 3.11 on that it finds.
set -eu
venv=$1

supported() {
    "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    # A name on PATH may be a shim for an interpreter that is not there, so each one is asked.
    for python in ${PYTHON:-} python3.13 python3.14 python3.12 python3.11 python3 python; do
        if supported "$python"; then
            echo "$python"
            return
        fi
    done
    echo "Interlock needs Python 3.11 or later, and none was found on PATH." >&2
    echo "Install one, or name it: make setup PYTHON=/path/to/python3.13" >&2
    return 1
}

if command -v uv >/dev/null 2>&1; then
    if ! supported "$venv/bin/python"; then
        echo "Creating $venv with uv"
        uv venv --python '>=3.11' "$venv"
    fi
    echo "Installing Interlock with all extras into $venv with uv"
    VIRTUAL_ENV=$venv uv pip install --quiet --editable '.[all,dev]'
else
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 || ! supported "$venv/bin/python"; then
        python=$(find_python)
        echo "Creating $venv with $("$python" --version)"
        "$python" -m venv --clear "$venv"
    fi
    echo "Installing Interlock with all extras into $venv with pip"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
fi
