#!/bin/sh
# First lines of the first process of a guest with an agent: folders, drivers, random numbers, and how the agent
# starts and ends. The caller's script follows; it reads lines of the host from descriptor 3.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec < /dev/null > /dev/ttyS0 2>&1
exec 3< /dev/ttyS1
for module in /modules/*; do insmod "$module"; done
# The static binary waits until the kernel has random numbers; a read makes it gather some.
head -c 1 /dev/random > /dev/null
start_agent() {
    blkkin agent --port "$@" > /agent.log 2>&1 &
    agent=$!
    until grep -q 'tracing; events go' /agent.log; do
        kill -0 $agent || { cat /agent.log; poweroff -f; }
        sleep 0.2
    done
}
end_agent() {
    kill -TERM $agent
    wait $agent
    echo "guest: the agent ended with $?"
    cat /agent.log
}
