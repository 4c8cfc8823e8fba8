#!/bin/sh
# Puts blkkin's services on hosts, over ssh or whatever reaches them, and says how each is. Run again it changes what has changed.
#
#   configs/deploy/install.sh --config DIR [--agent "HOST …"] [--aggregator "HOST …"] [--exporter "HOST …"] [OPTION…]
#   configs/deploy/install.sh --uninstall [--agent "HOST …"] [--aggregator "HOST …"] [--exporter "HOST …"]
#
#   --config DIR      DIR/agent.toml, DIR/aggregator.toml, DIR/exporter.toml; for one host alone DIR/HOST/agent.toml and so on;
#                     DIR/credentials.toml, if there is one, is a second -c file that nobody but the service can read;
#                     DIR/*.pem come to /etc/blkkin too
#   --binary FILE     what `cargo xtask dist` makes [target/dist/blkkin]
#   --at-a-time N     hosts that are worked at beside each other [16]
#   --wait SECONDS    until a service is healthy [60]
#   --no-systemd      no unit: started in the background, with a file of its process id in /run/blkkin and its words in
#                     /var/log/blkkin
#   --purge           with --uninstall: what services keep in /var/lib/blkkin too
#
#   RUN="ssh root@{host}"   runs a command, the last word, as root on a host; {host} is its name
#
# On a host: /usr/local/bin/blkkin, /etc/blkkin, /etc/systemd/system/blkkin-SERVICE.service. Needed there: a POSIX sh with the
# usual tools, sha256sum, and curl or wget (busybox has all of it). Exit status 0 if all services are healthy.
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
    [ -d "$config" ] || die "no folder ${config:-of options}" "each service is told by a file what to do" "--config DIR"
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

# The address at which a service with these options answers on its own host; none where it is told to answer nowhere.
health_address() {
    case $1 in agent) port=9899 ;; aggregator) port=9900 ;; *) port=9901 ;; esac
    told=$(sed -n 's/^metrics *= *"\(.*\)".*/\1/p' "$2")
    case $told in
        off) ;;
        '') echo "127.0.0.1:$port" ;;
        0.0.0.0:*) echo "127.0.0.1:${told##*:}" ;;
        '[::]':*) echo "[::1]:${told##*:}" ;;
        *) echo "$told" ;;
    esac
}

# What runs on the host. $service, $systemd, $restart, $health, $patience are set before it.
there='
pid_file=/run/blkkin/$service.pid log=/var/log/blkkin/$service.log unit=blkkin-$service
pid() { [ -f "$pid_file" ] && cat "$pid_file"; }
runs() {
    if [ $systemd = 1 ]; then systemctl is-active -q $unit; return; fi
    # A number may have become another process.
    pid=$(pid) && [ -d "/proc/$pid" ] && tr "\0" " " <"/proc/$pid/cmdline" | grep -q "blkkin $service "
}
stop() {
    if [ $systemd = 1 ]; then systemctl disable -q --now $unit 2>/dev/null; return; fi
    runs && kill -TERM "$(pid)" && left=30 && while runs && [ $left -gt 0 ]; do sleep 1; left=$((left - 1)); done
    runs && kill -KILL "$(pid)"
    rm -f "$pid_file"
}
start() {
    if [ $systemd = 1 ]; then
        systemctl daemon-reload && systemctl enable -q $unit && systemctl restart $unit
        return
    fi
    stop
    mkdir -p /run/blkkin /var/log/blkkin /var/lib/blkkin
    command=$(cat /etc/systemd/system/$unit.service /etc/systemd/system/$unit.service.d/*.conf 2>/dev/null |
        sed -n "s/^ExecStart=\(..*\)/\1/p" | tail -n 1 | sed "s|%d|/etc/blkkin|g")
    # In a session of its own, which nobody hangs up.
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

# common_on HOST: what all services of a host share; notes in $common what is new.
common_on() {
    changed=''
    put "$1" "$binary" 755 /usr/local/bin/blkkin || return 1
    for each in "$config"/*.pem; do
        [ ! -f "$each" ] || put "$1" "$each" 644 "/etc/blkkin/$(basename "$each")" || return 1
    done
    credentials=$(file "$1" credentials.toml)
    # Root's alone; the manager hands a service a copy that no other user can read.
    [ ! -f "$credentials" ] || put "$1" "$credentials" 600 /etc/blkkin/credentials.toml || return 1
    common=$changed
}

# options_on HOST SERVICE: its own files.
options_on() {
    unit=/etc/systemd/system/blkkin-$2.service
    put "$1" "$options" 644 "/etc/blkkin/$2.toml" || return 1
    put "$1" "$here/../blkkin-$2.service" 644 "$unit" || return 1
    [ -f "$credentials" ] || return 0
    command="/usr/local/bin/blkkin $2 -c /etc/blkkin/$2.toml -c %d/credentials.toml"
    printf '[Service]\nLoadCredential=credentials.toml:/etc/blkkin/credentials.toml\nExecStart=\nExecStart=%s\n' \
        "$command" >"$work/$1-$2.conf"
    put "$1" "$work/$1-$2.conf" 644 "$unit.d/credentials.conf"
}

# service_on HOST SERVICE: installs, starts, waits; a line for the table.
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
        if [ $restart = 1 ] || ! runs; then start || true; fi
        state=ended word="no answer"
        while [ $patience -ge 0 ]; do
            if runs; then state=runs; else state=ended; fi
            if [ -z "$health" ]; then word="not asked"; [ $state = runs ] && break; fi
            if said=$(ask 2>/dev/null); then word=$(echo "$said" | tr "\n" " "); break; fi
            # A manager starts it again; nobody else does.
            [ $systemd = 1 ] || kill -0 "$(pid)" 2>/dev/null || break
            sleep 1; patience=$((patience - 1))
        done
        # Another process may have answered at that address.
        runs || state=ended
        printf "%s|%s|%s\n" "$(/usr/local/bin/blkkin --version)" $state "$word"
        [ $state = runs ] && [ "$word" != "no answer" ] && exit
        if [ $systemd = 1 ]; then journalctl -q -n 3 -o cat -u $unit; else tail -n 3 "$log"; fi >&2
        exit 1' >"$work/$host-$service.sh"
    said=$(on "$host" "sh -s" <"$work/$host-$service.sh" 2>"$work/$host-$service.err")
    status=$?
    # What it said is three columns.
    printf '%s|%s|%s|%s\n' "$host" "$service" "${said:--|-|cannot be reached}" "${changed:- nothing}"
    [ $status = 0 ] || sed "s/^/  $host $service: /" "$work/$host-$service.err" >&2
    return $status
}

# service_off HOST SERVICE: the other way round; what is the other services' stays.
service_off() {
    host=$1 service=$2
    printf '%s\n' "service=$2 systemd=$systemd purge=$purge" "$there" '
        stop
        rm -rf /etc/systemd/system/$unit.service /etc/systemd/system/$unit.service.d "/etc/blkkin/$service.toml" "$log"
        [ $systemd = 0 ] || systemctl daemon-reload
        [ $purge = 0 ] || rm -rf /var/lib/blkkin
        for other in agent aggregator exporter; do [ ! -f /etc/blkkin/$other.toml ] || exit 0; done
        rm -f /usr/local/bin/blkkin /etc/blkkin/credentials.toml /etc/blkkin/*.pem
        rmdir /etc/blkkin /run/blkkin /var/log/blkkin 2>/dev/null
        exit 0' >"$work/$host-$service.sh"
    if on "$host" "sh -s" <"$work/$host-$service.sh" >/dev/null 2>"$work/$host-$service.err"; then
        line "$host" "$service" - gone - -
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
