#!/bin/sh
# as-user.sh CMD...: inside the test machine, runs CMD as uid 1000 in a cgroup of its own that is delegated to that user,
# as `systemd-run --user --scope -p Delegate=yes CMD` does: controllers enabled down to the scope, the scope's directory
# and the files named in cgroups(7), "Delegation", owned by the user. For tests of the rootless mode.
set -eu
cd /sys/fs/cgroup
group=.
for child in user.slice user-1000.slice user@1000.service app.slice test.scope; do
    echo '+cpu +memory +pids' > "$group/cgroup.subtree_control"
    group=$group/$child
    mkdir -p "$group"
done
for owned in user.slice/user-1000.slice/user@1000.service user.slice/user-1000.slice/user@1000.service/app.slice "$group"; do
    chown 1000:1000 "$owned" "$owned/cgroup.procs" "$owned/cgroup.subtree_control" "$owned/cgroup.threads"
done
echo $$ > "$group/cgroup.procs"
cd "$OLDPWD"
export XDG_RUNTIME_DIR=/run/user/1000 HOME=/tmp/user
mkdir -p /run/user "$XDG_RUNTIME_DIR" "$HOME"
chmod 700 "$XDG_RUNTIME_DIR" "$HOME"
chown 1000:1000 "$XDG_RUNTIME_DIR" "$HOME"
exec setpriv --reuid 1000 --regid 1000 --clear-groups "$@"
