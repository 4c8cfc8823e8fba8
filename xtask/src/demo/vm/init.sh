#!/bin/busybox sh
# First process of a guest of the demo: starts its agent, waits for a line from the host, runs the workload, and
# powers off. WORKLOAD is replaced.
export PATH=/bin
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
exec < /dev/null > /dev/ttyS0 2>&1
exec 3< /dev/ttyS1
for module in /modules/*; do $b insmod "$module"; done
# The static binary waits until the kernel has random numbers; a read makes it gather some.
$b head -c 1 /dev/random > /dev/null
$b mount -t ext4 /dev/vda /data
blkkin agent --port --device vda > /agent.log 2>&1 &
agent=$!
until $b grep -q 'tracing; events go' /agent.log; do
    kill -0 $agent || { $b cat /agent.log; $b poweroff -f; }
    $b sleep 0.2
done
echo "guest: ready"
read -r _ <&3
WORKLOAD
$b umount /data
kill -TERM $agent
wait $agent
echo "guest: its agent ended with $?"
$b cat /agent.log
$b poweroff -f
