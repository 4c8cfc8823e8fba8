#!/bin/sh
# Installs blkkin's services on hosts, over ssh or another command, and prints the state of each. A second run changes only what has
# changed.
#
#   configs/deploy/install.sh --config DIR [--agent "HOST …"] [--aggregator "HOST …"] [--exporter "HOST …"] [OPTION…]
#   configs/deploy/install.sh --uninstall [--agent "HOST …"] [--aggregator "HOST …"] [--exporter "HOST …"]
#
#   --config DIR      DIR/agent.toml, DIR/aggregator.toml, DIR/exporter.toml: the services' options;
#                     DIR/credentials.toml: a second -c file of each service, for passwords;
#                     DIR/metrics-token, DIR/*.pem, DIR/*.key: tokens, certificates and keys;
#                     DIR/*.toml, any other: mapping files. A file in DIR/HOST replaces that of DIR on this host.
#                     All go to /etc/blkkin; credentials, tokens, certificates and keys with mode 0600.
#   --binary FILE     static binary from `cargo xtask dist` [target/dist/blkkin]
#   --at-a-time N     number of hosts that are installed in parallel [16]
#   --wait SECONDS    longest wait until a service has started and is healthy [60]
#   --no-systemd      no unit: the service runs in the background, with its process id in /run/blkkin and its log in
#                     /var/log/blkkin
#   --purge           with --uninstall: also delete the agent's spool and the exporter's files in /var/lib
#
#   RUN="ssh root@{host}"   runs a command, the last word, as root on a host; {host} is its name
#
# On a host: /usr/local/bin/blkkin, /etc/blkkin, /etc/systemd/system/blkkin-SERVICE.service. Needed there: a POSIX sh with the
# usual tools, sha256sum, and curl or wget (busybox has all of it). Exit status 0 if all services have started and are healthy.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
RUN=${RUN:-ssh -o BatchMode=yes root@{host\}}
binary=$here/../../target/dist/blkkin config='' at_a_time=16 patience=60 systemd=1 uninstall=0 purge=0
agent='' aggregator='' exporter=''

die() {
    printf 'install.sh: %s\n  why: %s\n  try: %s\n' "$1" "$2" "$3" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
        --no-systemd) systemd=0 ;;
        --uninstall) uninstall=1 ;;
        --purge) purge=1 ;;
        --help) sed -n '2,/^set -u/s/^# \{0,1\}//p' "$0" && exit ;;
        --agent | --aggregator | --exporter | --binary | --config | --at-a-time | --wait)
            [ $# -gt 1 ] || die "$1 without a value" "it takes one" "$1 VALUE"
            case $1 in
                --agent) agent=$2 ;;
                --aggregator) aggregator=$2 ;;
                --exporter) exporter=$2 ;;
                --binary) binary=$2 ;;
                --config) config=$2 ;;
                --at-a-time) at_a_time=$2 ;;
                --wait) patience=$2 ;;
            esac
            shift ;;
        *) die "unknown option $1" "there is none of this name" "$0 --help" ;;
    esac
    shift
done

[ -n "$agent$aggregator$exporter" ] || die "no hosts" "nothing says where a service goes" '--agent "HOST …"'
if [ $uninstall = 0 ]; then
    [ -x "$binary" ] || die "no $binary" "the static binary is not there" "cargo xtask dist, or --binary FILE"
    [ -d "$config" ] || die "no folder ${config:-of options}" "each service reads its options from a file" "--config DIR"
    # Every user of a host can read the options, but not credentials.toml.
    for each in "$config"/*.toml "$config"/*/*.toml; do
        [ -f "$each" ] && [ "${each##*/}" != credentials.toml ] && grep -q '^[^#]*password"\{0,1\} *=' "$each" || continue
        die "a password in $each" "every user of a host can read this file" "move it to $config/credentials.toml"
    done
fi
work=$(mktemp -d) || die "no folder for notes" "mktemp failed" "room in ${TMPDIR:-/tmp}"
trap 'rm -rf "$work"' EXIT

# on HOST COMMAND: as root there; its input is this one's.
on() {
    # Split into words on purpose: RUN is a command line.
    # shellcheck disable=SC2046
    $(printf '%s' "$RUN" | sed "s|{host}|$1|g") "$2"
}

# put HOST FILE MODE PLACE: there as a whole or not at all, and only if it is another; notes PLACE in $changed then.
put() {
    sum=$(sha256sum <"$2" | cut -d' ' -f1)
    if [ "$(on "$1" "[ ! -f '$4' ] || { sha256sum <'$4' | cut -d' ' -f1; stat -c %a '$4'; }" </dev/null)" = "$sum
$3" ]; then
        return 0
    fi
    changed="$changed $(basename "$4")"
    on "$1" "umask 077 && mkdir -p '$(dirname "$4")' && chmod 755 '$(dirname "$4")' && cat >'$4.new' && chmod $3 '$4.new' && mv '$4.new' '$4'" <"$2"
}

# file HOST NAME: the one for this host, or that for all.
file() {
    if [ -f "$config/$1/$2" ]; then echo "$config/$1/$2"; else echo "$config/$2"; fi
}

# Prints the address of the health endpoint of a service with these options; nothing if the endpoint is off.
health_address() {
    case $1 in agent) port=9899 ;; aggregator) port=9900 ;; *) port=9901 ;; esac
    address=$(sed -n 's/^metrics *= *"\(.*\)".*/\1/p' "$2")
    case $address in
        off) ;;
        '') echo "127.0.0.1:$port" ;;
        0.0.0.0:*) echo "127.0.0.1:${address##*:}" ;;
        '[::]':*) echo "[::1]:${address##*:}" ;;
        *) echo "$address" ;;
    esac
}

# The part that runs on the host. $service, $systemd, $restart, $health, $patience are set before it.
there='
pid_file=/run/blkkin/$service.pid log=/var/log/blkkin/$service.log unit=blkkin-$service
pid() { [ -f "$pid_file" ] && cat "$pid_file"; }
# Prints runs, starts or ended.
state() {
    if [ $systemd = 1 ]; then
        case $(systemctl is-active $unit) in
            active | reloading) echo runs ;;
            activating) echo starts ;;
            *) echo ended ;;
        esac
        return
    fi
    # The number may be that of another process by now.
    pid=$(pid) && [ -d "/proc/$pid" ] && tr "\0" " " <"/proc/$pid/cmdline" | grep -q "blkkin $service " && echo runs || echo ended
}
runs() { [ "$(state)" = runs ]; }
stop() {
    if [ $systemd = 1 ]; then systemctl disable -q --now $unit 2>/dev/null; return; fi
    runs && kill -TERM "$(pid)" && left=30 && while runs && [ $left -gt 0 ]; do sleep 1; left=$((left - 1)); done
    runs && kill -KILL "$(pid)"
    rm -f "$pid_file"
}
start() {
    if [ $systemd = 1 ]; then
        # Without --no-block it would wait for readiness, and a service is not ready until the cluster answers. It is stopped
        # first, so that the state is never that of the process before.
        systemctl daemon-reload && systemctl enable -q $unit && systemctl stop $unit && systemctl start --no-block $unit
        return
    fi
    stop
    mkdir -p /run/blkkin /var/log/blkkin
    value() {
        cat /etc/systemd/system/$unit.service /etc/systemd/system/$unit.service.d/*.conf 2>/dev/null |
            sed -n "s/^$1=\(..*\)/\1/p" | tail -n 1
    }
    command=$(value ExecStart) folder=$(value StateDirectory)
    if [ -n "$folder" ]; then
        mkdir -p -m 700 "/var/lib/$folder"
        export STATE_DIRECTORY="/var/lib/$folder"
    fi
    # In a session of its own, so that no hang-up ends it.
    setsid $command >>"$log" 2>&1 </dev/null &
    echo $! >"$pid_file"
}
ask() {
    if command -v curl >/dev/null; then curl -fsS -m 5 "http://$health/health"; else timeout 5 wget -q -O - "http://$health/health"; fi
}
'

# line HOST SERVICE VERSION STATE HEALTH CHANGED: of the table.
line() {
    printf '%s|%s|%s|%s|%s|%s\n' "$@"
}

# names HOST PATTERN...: the names of the files for this host that match.
names() {
    for pattern in "$@"; do
        for each in "$config"/$pattern "$config/$1"/$pattern; do
            [ ! -f "$each" ] || basename "$each"
        done
    done | sort -u
}

# secrets HOST: the names of the files that only root and the services may read.
secrets() {
    names "$1" credentials.toml metrics-token '*.pem' '*.key'
}

# mappings HOST: the names of the other files.
mappings() {
    names "$1" '*.toml' | grep -v -x -e agent.toml -e aggregator.toml -e exporter.toml -e credentials.toml
}

# common_on HOST: the files that all services of a host share; lists in $common those that changed.
common_on() {
    changed=''
    put "$1" "$binary" 755 /usr/local/bin/blkkin || return 1
    for name in $(secrets "$1"); do
        put "$1" "$(file "$1" "$name")" 600 "/etc/blkkin/$name" || return 1
    done
    for name in $(mappings "$1"); do
        put "$1" "$(file "$1" "$name")" 644 "/etc/blkkin/$name" || return 1
    done
    common=$changed
}

# drop_in HOST SERVICE: the unit's additions. systemd copies each secret to where only the service's user can read it, and mounts
# the copy over the original.
drop_in() {
    echo '[Service]'
    for name in $(secrets "$1"); do
        echo "LoadCredential=$name:/etc/blkkin/$name"
        echo "BindReadOnlyPaths=%d/$name:/etc/blkkin/$name"
    done
    [ ! -f "$(file "$1" credentials.toml)" ] || printf 'ExecStart=\nExecStart=%s\n' \
        "/usr/local/bin/blkkin $2 -c /etc/blkkin/$2.toml -c /etc/blkkin/credentials.toml"
}

# options_on HOST SERVICE: the files of one service.
options_on() {
    unit=/etc/systemd/system/blkkin-$2.service
    put "$1" "$options" 644 "/etc/blkkin/$2.toml" || return 1
    put "$1" "$here/../blkkin-$2.service" 644 "$unit" || return 1
    drop_in "$1" "$2" >"$work/$1-$2.conf"
    put "$1" "$work/$1-$2.conf" 644 "$unit.d/files.conf"
}

# service_on HOST SERVICE: installs, starts and waits; prints a row of the table.
service_on() {
    host=$1 service=$2 changed=$common options=$(file "$1" "$2.toml")
    if [ ! -f "$options" ]; then
        line "$host" "$service" - - "no $2.toml in $config" -
        return 1
    fi
    if ! options_on "$1" "$2"; then
        line "$host" "$service" - - 'cannot be written to' -
        return 1
    fi
    health=$(health_address "$service" "$options")
    restart=0
    [ -z "$changed" ] || restart=1
    printf '%s\n' "service=$service systemd=$systemd restart=$restart health='$health' patience=$patience" "$there" '
        if [ $restart = 1 ] || [ "$(state)" = ended ]; then start || true; fi
        word="no answer" until=$(($(date +%s) + patience))
        while :; do
            state=$(state)
            if [ -z "$health" ]; then word="not asked"
            elif reply=$(ask 2>/dev/null); then word=$(echo "$reply" | tr "\n" " "); fi
            [ $state = runs ] && [ "$word" != "no answer" ] && break
            # systemd starts it again; without systemd nothing does.
            [ $systemd = 1 ] || kill -0 "$(pid)" 2>/dev/null || break
            [ "$(date +%s)" -lt $until ] || break
            sleep 1
        done
        # Another process may have answered at that address.
        state=$(state)
        printf "%s|%s|%s\n" "$(/usr/local/bin/blkkin --version)" $state "$word"
        [ $state = runs ] && [ "$word" != "no answer" ] && exit
        if [ $systemd = 1 ]; then journalctl -q -n 3 -o cat -u $unit; else tail -n 3 "$log"; fi >&2
        exit 1' >"$work/$host-$service.sh"
    reply=$(on "$host" "sh -s" <"$work/$host-$service.sh" 2>"$work/$host-$service.err")
    status=$?
    # It printed three columns.
    printf '%s|%s|%s|%s\n' "$host" "$service" "${reply:--|-|cannot be reached}" "${changed:- nothing}"
    [ $status = 0 ] || sed "s/^/  $host $service: /" "$work/$host-$service.err" >&2
    return $status
}

# service_off HOST SERVICE: removes one service; files that another one uses stay.
service_off() {
    host=$1 service=$2
    printf '%s\n' "service=$2 systemd=$systemd purge=$purge" "$there" '
        stop
        rm -rf /etc/systemd/system/$unit.service /etc/systemd/system/$unit.service.d "/etc/blkkin/$service.toml" "$log"
        [ $systemd = 0 ] || systemctl daemon-reload
        case $service in agent) state=/var/lib/blkkin-agent ;; exporter) state=/var/lib/blkkin ;; *) state= ;; esac
        # A user of its own (DynamicUser=) has its files below private, and a link to them.
        private=/var/lib/private/${state##*/}
        [ -z "$state" ] || [ $purge = 0 ] || rm -rf "$state" "$private"
        # Counters of agents that were killed.
        [ $service != agent ] || [ $purge = 0 ] || rm -rf /sys/fs/bpf/blkkin
        [ -z "$state" ] || [ ! -e "$state" ] || echo "$state is kept (--purge)"
        for other in agent aggregator exporter; do [ ! -f /etc/blkkin/$other.toml ] || exit 0; done
        rm -f /usr/local/bin/blkkin /etc/blkkin/*.toml /etc/blkkin/*.pem /etc/blkkin/*.key /etc/blkkin/metrics-token
        rmdir /etc/blkkin /run/blkkin /var/log/blkkin 2>/dev/null
        exit 0' >"$work/$host-$service.sh"
    if reply=$(on "$host" "sh -s" <"$work/$host-$service.sh" 2>"$work/$host-$service.err"); then
        line "$host" "$service" - gone "${reply:--}" -
    else
        line "$host" "$service" - - 'cannot be reached' -
        return 1
    fi
}

# All services of a host, one after the other: they share a binary.
one_host() {
    failed=0 common=''
    if [ $uninstall = 0 ] && ! common_on "$1" 2>"$work/$1.err"; then
        line "$1" - - - 'cannot be reached, or not written to' -
        sed "s/^/  $1: /" "$work/$1.err" >&2
        : >"$work/failed"
        return
    fi
    for name in aggregator exporter agent; do
        eval "hosts=\$$name"
        for candidate in $hosts; do
            [ "$candidate" = "$1" ] || continue
            if [ $uninstall = 1 ]; then service_off "$1" "$name"; else service_on "$1" "$name"; fi || failed=1
        done
    done
    [ $failed = 0 ] || : >"$work/failed"
}

running=0 hosts_all=$(printf '%s\n' $aggregator $exporter $agent | awk '!seen[$0]++')
for each in $hosts_all; do
    (one_host "$each" >"$work/$each.table") &
    running=$((running + 1))
    [ $running -lt "$at_a_time" ] || { wait; running=0; }
done
wait
{
    echo 'HOST|SERVICE|VERSION|STATE|HEALTH|CHANGED'
    for each in $hosts_all; do cat "$work/$each.table"; done
} | awk -F'|' '
    { for (n = 1; n <= NF; n++) { cell[NR, n] = $n; if (length($n) > width[n]) width[n] = length($n) }; fields[NR] = NF }
    END { for (l = 1; l <= NR; l++) { line = ""; for (n = 1; n <= fields[l]; n++) line = line sprintf("%-" width[n] + 2 "s", cell[l, n]); sub(/ +$/, "", line); print line } }'
[ ! -e "$work/failed" ]
