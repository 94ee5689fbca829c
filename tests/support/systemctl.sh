#!/bin/bash
# In place of systemd, for tests of the procedures of operators: systemctl start|stop|restart|kill octavo-bookie@NAME...
# A unit is a process with the data directory $FLEET/NAME; `start` returns when the bookie is registered.
set -euo pipefail
verb=$1
shift
[ "$verb" != kill ] || shift 2 # -s KILL
for unit in "$@"; do
    name=${unit#octavo-bookie@}
    pid_file=$FLEET/$name.pid
    if [ "$verb" = kill ]; then
        kill -KILL "$(cat "$pid_file")"
    elif [ "$verb" != start ]; then
        pid=$(cat "$pid_file")
        kill -TERM "$pid"
        tail --pid="$pid" -s 0.05 -f /dev/null
    fi
done
[ "$verb" = start ] || [ "$verb" = restart ] || exit 0
for unit in "$@"; do
    name=${unit#octavo-bookie@}
    mkdir -p "$FLEET/$name"
    setsid "$PYTHON" -P -m octavo.cli.main bookie --data-dir "$FLEET/$name" --bookie-id "$name" --port 0 \
        --log-level warning </dev/null >/dev/null 2>>"$FLEET/$name.log" &
    echo $! >"$FLEET/$name.pid"
done
for unit in "$@"; do
    name=${unit#octavo-bookie@}
    until octavo bookies --json | grep -q "\"bookie_id\": *\"$name\"[^}]*writable"; do sleep 0.1; done
done
