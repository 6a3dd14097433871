#!/bin/bash
# Stop and wipe the cloud when its last user has ended. Every user has a shared lock on LOCK and starts one guard. The guard
# waits for the end of its standard input, a pipe from that user, which closes however the user ends.
#   guard.sh LOCK
trap '' HUP INT TERM
src="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cat >/dev/null
exec 9<"$1"
# An ending process may close the pipe some moments before the lock, so the guard waits for the lock. Another running user
# keeps it, and that user's guard stops the cloud.
flock -x -w 5 9 || exit 0
"$src/stop.sh" --wipe 9<&-
