#!/bin/busybox sh
# The first process of a guest: mounts, loads modules, runs what /programs lists, and powers off.
#
# The first serial line is the kernel's. What is said here goes over the second, where nobody else writes: lines that
# begin with `blkkin-guest: ` are between this script and vm/protocol.rs, all others are the tests'.
export PATH=/bin LANG=C.UTF-8 BLKKIN_GUEST="$(/bin/busybox uname -r)"
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
$b mkdir /dev/shm
$b mount -t tmpfs shm /dev/shm
$b mount -t securityfs security /sys/kernel/security
for module in $($b ls /modules); do
    $b insmod "/modules/$module"
done
exec < /dev/null > /dev/ttyS1 2>&1
while read -r name disk executable tests; do
    echo "blkkin-guest: program $name"
    [ "$disk" = none ] && unset BLKKIN_TEST_DISK || export BLKKIN_TEST_DISK="$disk"
    # The driver is loaded; its disk comes a moment later.
    tries=0
    while [ "$disk" != none ] && [ ! -b "$disk" ] && [ $tries -lt 100 ]; do
        tries=$((tries + 1))
        $b sleep 0.1
    done
    # shellcheck disable=SC2086 # one word a test
    timeout 200 "$executable" --test-threads=1 --show-output --exact $tests
    echo "blkkin-guest: status $?"
done < /programs
echo "blkkin-guest: done"
$b poweroff -f
