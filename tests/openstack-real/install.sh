#!/bin/bash
# Install everything (Debian packages as root, the rest from PyPI into a venv). Idempotent; safe to run twice at once.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
t0=$SECONDS
mkdir -p "$OSREAL_CACHE"
exec 9>"$OSREAL_CACHE/install.lock"; flock 9

need=()
for p in rabbitmq-server mariadb-server iproute2 procps curl openssl; do dpkg -s "$p" >/dev/null 2>&1 || need+=("$p"); done
# Debian's python3 lacks a package for `python3 -m venv`. Other builds of Python have it.
"$OSREAL_PYTHON" -c 'import venv, ensurepip' 2>/dev/null || need+=(python3-venv)
if [ ${#need[@]} -gt 0 ]; then
  # keep the packages from starting daemons of their own, also when apt fails
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d
  fi
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 "${need[@]}"
  echo "Debian packages done after $((SECONDS-t0)) s: ${need[*]}"
fi
if [ ! -f "$VENV/.complete" ]; then
  rm -rf "$VENV"
  "$OSREAL_PYTHON" -m venv "$VENV"
  "$VENV/bin/pip" install -q --disable-pip-version-check -r "$OSREAL_SRC/requirements.txt" -c "$OSREAL_SRC/constraints.txt"
  touch "$VENV/.complete"
fi
echo "installed in $((SECONDS-t0)) s"
