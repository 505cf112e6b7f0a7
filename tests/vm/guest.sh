# shellcheck shell=dash
# Process 1 of the test machine after init.sh: makes the host's tree look like a host that booted with cgroup v2, runs
# /run/vm/command.sh, writes its exit code to the port named "code" and powers off. Its own tools are busybox's, so that
# nothing depends on what the host has installed; the command sees the host's. A failure here ends process 1 and with it
# the machine; the boot log says why.
set -eu
export PATH=/run/vm/bin
/run/vm/busybox mkdir /run/vm/bin
/run/vm/busybox --install -s /run/vm/bin

mount -t sysfs sys /sys
mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup  # as systemd mounts it
mkdir /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666,gid=5 devpts /dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev shm /dev/shm
ln -s /proc/self/fd /dev/fd
mount -t tmpfs -o mode=1777,nosuid,nodev tmp /var/tmp
mke2fs -I 256 /dev/vda > /dev/null  # a real file system, on which idmapped mounts work (on tmpfs only from Linux 6.3 on)
mount -t ext4 /dev/vda /tmp
chmod 1777 /tmp
mount -t tmpfs -o mode=755 lib /var/lib
while read -r hidden; do  # directories of the host that an ordinary user could not search on the way to a share
    mount -t tmpfs -o mode=755 hidden "$hidden"
done < /run/vm/hidden
while read -r tag share; do
    mkdir -p "$share"
    mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose "$tag" "$share"
done < /run/vm/shares
mount --make-rshared /  # as systemd does, so that the package has to cope with it
ip link set lo up
hostname vm

port() { grep -lx "$1" /sys/class/virtio-ports/*/name | cut -d/ -f5; }
output=/dev/$(port output)
code=/dev/$(port code)

# The layout of a systemd host: no process in the root cgroup, controllers enabled from the top down.
cd /sys/fs/cgroup
mkdir -p init.scope system.slice/test.service
echo $$ > init.scope/cgroup.procs
for group in . system.slice; do echo '+cpu +memory +pids' > $group/cgroup.subtree_control; done

(
    echo 0 > system.slice/test.service/cgroup.procs
    exec /bin/sh /run/vm/command.sh  # the host's, not busybox's
) < /dev/null > "$output" 2>&1 && status=0 || status=$?
echo "$status" > "$code"
sync
poweroff -f
