#!/bin/bash
# Create two tenants, and for the first a network, a router and servers; write client files (see README.md).
#   seed.sh [SERVERS]     (default 2)
# A second run creates only missing objects.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
export PYTHONWARNINGS=ignore; unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY
exec "$VENV/bin/python" "$OSREAL_SRC/seed.py" "${1:-2}"
