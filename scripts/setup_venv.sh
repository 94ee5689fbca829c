#!/usr/bin/env bash
# Installs Octavo (editable) into .venv with all that its checks, tests and demo need. Returns at once if .venv is up to date.
#
#   scripts/setup_venv.sh                 set up
#   scripts/setup_venv.sh --find-python   print the interpreter that would be used, or say what is missing
#
# PYTHON names the interpreter (3.12 or newer). Without it: the version in .python-version, then any that is new enough.
# Several instances may run at once: the first one installs, the others wait for it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
venv=$root/.venv
stamp=$venv/.octavo-setup
preferred=$(tr -d '[:space:]' <.python-version)

usable() { # can this interpreter run Octavo and make virtual environments?
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1 </dev/null
}

pyenv_versions() { # pyenv's interpreters of the versions that match, newest first; none where there is no pyenv
    local interpreter
    for interpreter in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/$1/bin/python; do
        if [ -x "$interpreter" ]; then echo "$interpreter"; fi
    done | sort -rV
}

candidates() { # best first, one a line
    echo "python$preferred"
    pyenv_versions "$preferred*"
    printf '%s\n' python3.13 python3.12 python3.14 python3 python
    pyenv_versions '3.1[2-9]*'
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        if usable "$PYTHON"; then echo "$PYTHON"; return 0; fi
        echo "octavo: PYTHON=$PYTHON is not a Python 3.12 or newer with the venv and ensurepip modules;" \
            "name another, or unset PYTHON to search for one" >&2
        return 1
    fi
    local candidate
    while read -r candidate; do
        if usable "$candidate"; then echo "$candidate"; return 0; fi
    done < <(candidates)
    cat >&2 <<MESSAGE
octavo: no Python 3.12 or newer with the venv and ensurepip modules (looked for python$preferred, python3.12, python3 and pyenv's versions).
  Debian, Ubuntu:  apt install python3.12 python3.12-venv   (or python3.13 python3.13-venv)
  pyenv:           pyenv install $preferred
  elsewhere:       make PYTHON=/path/to/python3.12 ...
MESSAGE
    return 1
}

wanted_stamp() { # identifies what .venv was made from
    printf '%s\n' "$root"
    cksum <pyproject.toml
    cksum <scripts/setup_venv.sh
}

interpreter_version() { "$1" -c 'import sys; print(sys.version)' 2>/dev/null </dev/null; }

installs_this_tree() { # does .venv import this tree? `pip install .` replaces the editable install by a copy
    cat "$venv"/lib/python3*/site-packages/__editable__.octavo-*.pth 2>/dev/null | grep -qxF "$root/src"
}

ready() {
    [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(wanted_stamp)" ] || return 1
    installs_this_tree || return 1
    [ -z "${PYTHON:-}" ] || [ "$(interpreter_version "$PYTHON")" = "$(interpreter_version "$venv/bin/python")" ]
}

keep_environment() { # keep and complete a usable environment; recreate one that is broken, too old or was moved
    usable "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1 || return 1
    [ ! -f "$stamp" ] || [ "$(head -n 1 "$stamp")" = "$root" ] || return 1
    [ -z "${PYTHON:-}" ] || [ "$(interpreter_version "$PYTHON")" = "$(interpreter_version "$venv/bin/python")" ]
}

if [ "${1:-}" = --find-python ]; then
    find_python
    exit
fi
if ready; then exit 0; fi

mkdir -p .check
exec 9>.check/setup.lock
if command -v flock >/dev/null; then flock 9; fi
if ready; then exit 0; fi

if ! keep_environment; then
    python=$(find_python)
    echo "Making .venv with $("$python" --version) ..." >&2
    "$python" -m venv --clear "$venv"
fi
rm -f "$stamp"
echo "Installing Octavo and its tools into .venv (once; a minute or two) ..." >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --progress-bar off \
    --editable '.[dev]' </dev/null >&2 || {
    echo "octavo: installing into .venv failed; pip says why above. Fix the cause and run the same command again" >&2
    exit 1
}
wanted_stamp >"$stamp"
