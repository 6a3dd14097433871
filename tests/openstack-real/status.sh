#!/bin/bash
# Exit 0 when every service that start.sh started is still running and the APIs listen.
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[ -n "${OSREAL_PORT_OFFSET:-}" ] || { echo "never started" >&2; exit 1; }
for f in "$D"/run/*.pid; do alive "$(basename "$f" .pid)" || { echo "$(basename "$f" .pid) is not running" >&2; exit 1; }; done
for np in keystone:$P_KEYSTONE placement:$P_PLACEMENT glance:$P_GLANCE neutron:$P_NEUTRON nova:$P_NOVA octavia:$P_OCTAVIA rabbit:$P_RABBIT; do
  mine "${np%:*}" "${np#*:}" || { echo "${np%:*} does not listen on port ${np#*:}" >&2; exit 1; }
done
