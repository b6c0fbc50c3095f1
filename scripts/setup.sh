# Sourced by the other scripts: makes the virtual environment `.venv` and installs Perdure into it.
#
# Needs git's bash and a Python of 3.11 or later with `venv`, no root. $PYTHON names the interpreter; without it,
# `python3` and then `python3.14` down to `python3.11` are tried. An environment that exists is kept as it is, and
# nothing is installed again until pyproject.toml changes.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"

fail() {
  printf '%s\n' "$@" >&2
  exit 1
}

is_recent() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

can_make_venv() {
  "$1" -c 'import venv, ensurepip' >/dev/null 2>&1
}

# Prints the interpreter to make the environment with.
find_python() {
  local candidate recent=""
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python; do
    if is_recent "$candidate"; then
      recent="${recent:-$candidate}"
      if can_make_venv "$candidate"; then
        printf '%s\n' "$candidate"
        return
      fi
    fi
    if [ -n "${PYTHON:-}" ]; then break; fi # what was asked for is not replaced by something else
  done
  if [ -n "$recent" ]; then
    fail "$recent can't make virtual environments: its modules venv and ensurepip are missing." \
      "Install them (on Debian and Ubuntu: the package python3-venv), or set PYTHON to another Python."
  elif [ -n "${PYTHON:-}" ]; then
    fail "PYTHON=$PYTHON is not a Python of 3.11 or later."
  fi
  fail "Perdure needs Python 3.11 or later, and there is none on the PATH." \
    "Install one, or set PYTHON to where it is."
}

# set_up [EXTRAS]: afterwards $python is an interpreter that has Perdure, and the extras if there are any.
set_up() {
  local extras="${1:-}" interpreter stamp="$venv/.perdure-installed" wanted

  if [ ! -e "$venv/bin/python" ] && [ ! -e "$venv/Scripts/python.exe" ]; then
    interpreter="$(find_python)"
    echo "Making $venv with $("$interpreter" -V)" >&2
    "$interpreter" -m venv "$venv"
  fi
  python="$venv/bin/python"
  if [ ! -e "$python" ]; then python="$venv/Scripts/python.exe"; fi
  if ! is_recent "$python" || ! "$python" -m pip --version >/dev/null 2>&1; then
    fail "The environment $venv is broken or older than Python 3.11: remove it and try again."
  fi

  # The path is part of it, because an environment that was moved or copied points to where it came from.
  wanted="$(cksum <"$root/pyproject.toml") $root"
  if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted dev" ] || [ "$(cat "$stamp" 2>/dev/null)" = "$wanted $extras" ]; then
    return
  fi
  echo "Installing Perdure and what it needs into $venv" >&2
  rm -f "$stamp"
  "$python" -m pip install --quiet --disable-pip-version-check --editable "$root${extras:+[$extras]}" ||
    fail "Installing failed; what pip says is above."
  printf '%s\n' "$wanted $extras" >"$stamp"
}
