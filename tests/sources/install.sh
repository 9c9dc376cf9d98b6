#!/bin/sh
# Tries to install the servers that tests of sources start. It never fails: a test whose server is missing is skipped,
# and says so.
PATH="$PATH:/usr/sbin:/usr/libexec$(for folder in /usr/lib/postgresql/*/bin; do printf ':%s' "$folder"; done)"

missing() {
    for program in "$@"; do
        command -v "$program" >/dev/null 2>&1 || { echo "$program"; return; }
    done
}

provide() { # name, packages, programs
    name=$1 packages=$2
    shift 2
    lacks=$(missing "$@")
    [ -n "$lacks" ] || return 0
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "servers: $name is missing ($lacks); installing $packages"
        # RUNLEVEL=1: a server that is installed is not started.
        # shellcheck disable=SC2086
        { timeout 120 apt-get update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
            timeout 300 apt-get install -y --no-install-recommends $packages; } >/dev/null 2>&1 </dev/null
        lacks=$(missing "$@")
    fi
    [ -z "$lacks" ] || echo "servers: $name is missing ($lacks) and cannot be installed here; its tests are skipped"
}

provide PostgreSQL "postgresql" initdb postgres
provide MariaDB "mariadb-server-core mariadb-client-core" mariadbd mariadb-install-db my_print_defaults
exit 0
