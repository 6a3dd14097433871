#!/bin/bash
# Stop and wipe the cloud when its last user is gone. Every user holds a shared lock on LOCK and starts one guard, which
# waits for the end of its standard input, a pipe from that user: it sees the user's death, whatever killed it.
#   guard.sh LOCK
trap '' HUP INT TERM
src="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cat >/dev/null
exec 9<"$1"
# A dying process may close the pipe some moments before the lock, so the lock is waited for; another user that still
# lives keeps it, and its own guard will do the work.
flock -x -w 5 9 || exit 0
"$src/stop.sh" --wipe 9<&-
