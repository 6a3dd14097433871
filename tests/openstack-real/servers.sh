#!/bin/bash
# Create, delete, stop, start or list the tenant's servers; see servers.py.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
export PYTHONWARNINGS=ignore; unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY
exec "$VENV/bin/python" "$OSREAL_SRC/servers.py" "$@"
