#!/bin/bash
# Stop only the processes start.sh started, by recorded pid (each leads its own session/process group).
# "stop.sh --wipe" also removes databases, queues, configuration, logs and state (keeps the venv).
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
stop() { # stop PIDFILE
  local f=$1 p; [ -f "$f" ] || return 0; p=$(cat "$f")
  if kill -0 "$p" 2>/dev/null; then
    kill -TERM -- "-$p" 2>/dev/null || kill -TERM "$p" 2>/dev/null
    for _ in $(seq 1 50); do kill -0 "$p" 2>/dev/null || break; sleep 0.2; done
    kill -0 "$p" 2>/dev/null && kill -KILL -- "-$p" 2>/dev/null
  fi
  rm -f "$f"
}
cd /
for n in octavia octavia-worker nova nova-scheduler $(cd "$D/run" 2>/dev/null && ls nova-compute-*.pid 2>/dev/null | sed 's/\.pid$//') nova-conductor neutron glance placement keystone; do
  stop "$D/run/$n.pid" &
done
wait
stop "$D/run/rabbit.pid" & stop "$D/run/mariadb.pid" & wait
stop "$D/run/epmd.pid"
if [ "${1:-}" = --wipe ]; then rm -rf "$D"/{etc,run,log,db,rabbit,state,shim}; rm -f "$D"/{clouds.yaml,port-offset,seed.*,cloud*.conf}; fi
