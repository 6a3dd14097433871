# Shared settings; sourced by the other scripts. Override any of them in the environment.
system_python() { # Debian's Python, else the first of PATH: version managers build one without optimization, which is slower
  if /usr/bin/python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then echo /usr/bin/python3; else echo python3; fi
}
: "${OSREAL_CACHE:=${CCM_CACHE_DIR:-$HOME/.cache/ccm}/openstack-real}"  # the venvs, which --wipe keeps
: "${OSREAL_DIR:=$OSREAL_CACHE/cloud}"   # state of one cloud: databases, configuration, logs, pids
: "${OSREAL_PYTHON:=$(system_python)}"   # interpreter for the venv; 3.11 - 3.13
: "${OSREAL_COMPUTES:=1}"                # number of fake nova-compute processes
: "${OSREAL_THREADS:=8}"                 # threads per API process
OSREAL_SRC="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
D="$OSREAL_DIR"
VENV="$OSREAL_CACHE/venv-$({ cat "$OSREAL_SRC/requirements.txt" "$OSREAL_SRC/constraints.txt"; echo "$OSREAL_PYTHON"; } | sha256sum | cut -c1-12)"
HOST=127.0.0.1

# OSREAL_PORT_OFFSET is added to every service's usual port. start.sh picks a free one when it is not set, and remembers
# it with the state, whose service catalog contains the ports.
if [ -z "${OSREAL_PORT_OFFSET:-}" ] && [ -f "$D/port-offset" ]; then OSREAL_PORT_OFFSET=$(cat "$D/port-offset"); fi
USUAL_PORTS="5000 8778 8774 9696 9292 9876 5672 4369 5673"
set_ports() {
  port() { echo $(( $1 + OSREAL_PORT_OFFSET )); }
  P_KEYSTONE=$(port 5000) P_PLACEMENT=$(port 8778) P_NOVA=$(port 8774)
  P_NEUTRON=$(port 9696) P_GLANCE=$(port 9292) P_OCTAVIA=$(port 9876)
  P_RABBIT=$(port 5672) P_EPMD=$(port 4369) P_DIST=$(port 5673)
  AUTH_URL="http://$HOST:$P_KEYSTONE/v3"
  MQ="rabbit://guest:guest@$HOST:$P_RABBIT/"
  export P_KEYSTONE P_PLACEMENT P_NOVA P_NEUTRON P_GLANCE P_OCTAVIA AUTH_URL
}
# All ports stay below 32768, where Linux takes the local ports of outgoing connections from.
choose_offset() {
  local p busy try
  for try in $(seq 1 50); do
    OSREAL_PORT_OFFSET=$(( 8000 + RANDOM % 14800 )) busy=
    for p in $USUAL_PORTS; do busy+=$(ss -Hltn "sport = :$(( p + OSREAL_PORT_OFFSET ))"); done
    [ -n "$busy" ] || return 0
  done
  echo "no free range of ports found" >&2; return 1
}
if [ -n "${OSREAL_PORT_OFFSET:-}" ]; then set_ports; fi

listens() { # listens PORT -> pids
  ss -Hltnp "sport = :$1" | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u
}
mine() { # mine NAME PORT: the listener is a process that start.sh started as NAME
  local want p; want=$(cat "$D/run/$1.pid" 2>/dev/null) || return 1
  for p in $(listens "$2"); do [ "$(ps -o sid= -p "$p" | tr -d ' ')" = "$want" ] && return 0; done
  return 1
}
alive() { [ -f "$D/run/$1.pid" ] && kill -0 "$(cat "$D/run/$1.pid")" 2>/dev/null; }
ADMIN_PASS=admin SVC_PASS=service REGION=RegionOne
export OSREAL_DIR HOST ADMIN_PASS SVC_PASS REGION
dburl() { echo "mysql+pymysql://root@localhost/$1?unix_socket=$D/run/mysql.sock"; }
sqlroot() { mariadb --no-defaults -uroot -S "$D/run/mysql.sock" "$@"; }
