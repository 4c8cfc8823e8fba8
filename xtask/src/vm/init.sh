#!/bin/busybox sh
# First process of a guest: mounts file systems, loads modules, runs the programs of /programs, and
# powers off.
#
# The kernel writes to the first serial line. This script and the tests write to the second. Lines
# that begin with `blkkin-guest: ` are marks for vm/protocol.rs, all others are test output.
export PATH=/bin LANG=C.UTF-8 BLKKIN_GUEST="$(/bin/busybox uname -r)"
# There is no udev.
export DM_DISABLE_UDEV=1 MDADM_NO_UDEV=1
b=/bin/busybox

mounts() {
    $b mount -t proc proc /proc
    $b mount -t sysfs sys /sys
    $b mount -t devtmpfs dev /dev
    $b mkdir /dev/shm
    $b mount -t tmpfs shm /dev/shm
    $b mount -t securityfs security /sys/kernel/security
}

modules() {
    for module in $($b ls /modules); do
        # Without devices: null() makes them on demand.
        case "$module" in
        *null_blk*) parameters="nr_devices=0" ;;
        # One device, without a partition scan at each open.
        *nbd*) parameters="nbds_max=1 max_part=0" ;;
        # Made on demand: a disk of 64 MiB with a latency of 20 us, discard and write zeroes.
        *scsi_debug*) parameters="add_host=0 dev_size_mb=64 ndelay=20000 lbpu=1 lbpws=1" ;;
        *) parameters="" ;;
        esac
        # shellcheck disable=SC2086 # one word per parameter
        $b insmod "/modules/$module" $parameters
    done
}

# Makes a null_blk with this name and these settings, unless it exists.
null() {
    node="/dev/$1"
    [ ! -b "$node" ] || return 0
    at="/sys/kernel/config/nullb/$1"
    shift
    [ -d /sys/kernel/config/nullb ] || $b mount -t configfs config /sys/kernel/config
    $b mkdir "$at"
    for setting in "$@" power=1; do
        echo "${setting#*=}" > "$at/${setting%%=*}"
    done
}

# Makes a mapped device with this table, unless it exists.
mapped() {
    node=/dev/dm-0
    [ -b $node ] || echo "0 409600 $*" | dmsetup create blkkin
}

# Waits for up to 10 s until a command succeeds.
wait_until() {
    tries=0
    while ! "$@" && [ $tries -lt 100 ]; do
        tries=$((tries + 1))
        $b sleep 0.1
    done
}

gone() {
    [ ! -e /sys/block/md0 ] && [ ! -e /dev/md0 ]
}

# Makes an array of both virtio disks with these options, unless it exists.
array() {
    node=/dev/md0
    [ -b $node ] || mdadm --create $node --run --quiet --metadata=1.2 "$@" --raid-devices=2 /dev/vda /dev/vdb
    # Without it an idle array becomes clean, and that write would disturb a test's counts.
    delay=/sys/block/md0/md/safe_mode_delay
    [ ! -e $delay ] || echo 0 > $delay
}

mirror() {
    array --bitmap=none --assume-clean --level=1
}

# The kernel makes an empty pool if its metadata begins with zeroes.
thin() {
    [ ! -b /dev/dm-1 ] || return 0
    $b dd if=/dev/zero of=/dev/vdb bs=4096 count=1 conv=fsync 2> /dev/null
    echo "0 409600 thin-pool /dev/vdb /dev/vda 128 0" | dmsetup create blkkin-pool
    dmsetup message blkkin-pool 0 "create_thin 0"
    echo "0 204800 thin /dev/mapper/blkkin-pool 0" | dmsetup create blkkin
}

# Makes the disk with this name, unless it exists, and sets `node`; empty if the tests make their
# own disk.
disk() {
    case "$1" in
    virtio) node=/dev/vda ;;
    null)
        # Completed by a timer, so that several requests are in flight.
        null nullb0 size=256 submit_queues=2 queue_mode=2 irqmode=2 completion_nsec=50000 memory_backed=1 \
            discard=1 cache_size=16
        ;;
    slow) null nullb1 size=64 queue_mode=2 irqmode=2 completion_nsec=100000000 memory_backed=1 ;;
    # Offset by 1 MiB, so that a sector identifies its device.
    mute) null nullb2 size=64 queue_mode=2 irqmode=2 completion_nsec=5000000000 ;;
    quick)
        null nullb3 size=256 queue_mode=2 irqmode=0
        mapped linear /dev/nullb3 2048
        ;;
    striped) mapped striped 2 16 /dev/vda 2048 /dev/vdb 2048 ;;
    # Always down.
    flakey) mapped flakey /dev/vda 2048 0 3600 ;;
    # One bad block of 4 KiB.
    bad) null nullb4 size=64 queue_mode=2 irqmode=2 memory_backed=1 badblocks=+104-111 ;;
    zoned) null nullb5 size=64 queue_mode=2 irqmode=2 memory_backed=1 zoned=1 zone_size=4 ;;
    scsi)
        node=/dev/sda
        [ -b "$node" ] || echo 1 > /sys/bus/pseudo/drivers/scsi_debug/add_host
        ;;
    linear) mapped linear /dev/vda 2048 ;;
    delay) mapped delay /dev/vda 2048 100 ;;
    # No encryption, but otherwise like any cipher: its own pages and bios, written by a worker.
    crypt) mapped crypt cipher_null-ecb - 0 /dev/vda 2048 ;;
    mirror) mirror ;;
    raid0) array --level=0 --chunk=64 ;;
    raid10) array --bitmap=none --assume-clean --level=10 --layout=n2 --chunk=64 ;;
    thin)
        node=/dev/dm-1
        thin
        ;;
    tower)
        mirror
        mapped linear /dev/md0 2048
        ;;
    esac
    # The drivers are loaded; their disks appear a moment later.
    wait_until [ -b "$node" ]
    export BLKKIN_TEST_DISK="$node"
}

mounts
# The services' own endpoints; there is no other network.
$b ip link set lo up
modules
exec < /dev/null > /dev/ttyS1 2>&1
while read -r disk kind executable tests; do
    echo "blkkin-guest: program ${tests#* # }"
    unset BLKKIN_TEST_DISK BLKKIN_TEST_ATTACH
    [ "$kind" = best ] || export BLKKIN_TEST_ATTACH="$kind"
    [ "$disk" = loop ] || disk "$disk"
    # shellcheck disable=SC2086 # one word per test
    # On a busy machine, a program of 60 s may take ten times as long.
    timeout 900 "$executable" --test-threads=1 --show-output --exact ${tests% # *}
    echo "blkkin-guest: status $?"
    # Release the lower disks for the next suite.
    case "$disk" in linear | crypt | delay | flakey | quick | striped | tower | thin) [ ! -b /dev/dm-0 ] || dmsetup remove blkkin ;; esac
    case "$disk" in
    thin) dmsetup remove blkkin-pool ;;
    mirror | tower | raid0 | raid10)
        mdadm --stop --quiet /dev/md0
        # The device and its node disappear a moment later. Until then the next suite would use
        # them.
        wait_until gone
        ;;
    esac
done < /programs
echo "blkkin-guest: done"
$b poweroff -f
