#!/bin/busybox sh
# shellcheck shell=dash
# /init of the test machine's RAM disk: loads the modules, mounts the host's tree read-only as the root file system and
# hands over to guest.sh there. Runs as process 1 under busybox; /run carries what guest.sh needs across the switch.
set -eu
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host
mount -t tmpfs -o mode=755,nosuid,nodev run /host/run
mkdir /host/run/vm
cp /bin/busybox /etc/vm/* /host/run/vm/
mount --move /dev /host/dev
mount --move /proc /host/proc
exec switch_root /host /run/vm/busybox sh /run/vm/guest.sh
