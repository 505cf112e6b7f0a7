"""The reviewed x86-64 system calls: what a guest may not call, with which errno it is refused, and why.

Old calls (numbers up to `OLD_CALLS_END`) are allowed unless `RULES` denies them: ordinary programs use most of
them. Newer ones are allowed only by name (`ALLOWED_NEW`); every other number, also one that a future kernel
invents, is answered ENOSYS, as on a kernel that does not have it. `kernel/seccomp.py` turns these tables into a
filter; the documentation prints them. Nothing here acts, and nothing here is configurable by a sandbox.

Numbers: arch/x86/entry/syscalls/syscall_64.tbl of Linux 6.18. Refusals use the errno that the kernel itself gives
an unprivileged caller, or one without the feature compiled in, because programs have a fallback for exactly that.
"""

from errno import EAFNOSUPPORT, EMFILE, ENOSYS, EOPNOTSUPP, EPERM, EPROTONOSUPPORT
from typing import NamedTuple

OLD_CALLS_END = 334
"""rseq(2), Linux 4.18: the last number before the gap that ends at 424."""

NEWEST_REVIEWED = 469
"""file_setattr(2), Linux 6.17; 6.18 added only uprobe (336). Raising it means reviewing every call in between."""

SYS_SECCOMP, SYS_PIDFD_GETFD = 317, 438
"""What the host itself calls by number, because Python has no name for it."""


class Check(NamedTuple):
    """A comparison of one argument: its low 32 bits (or the `high` ones) after `mask`, in or not in `values`."""

    arg: int
    values: tuple[int, ...]
    inside: bool = True
    """Holds when the masked value is one of `values`; with False when it is none of them."""
    mask: int = 0xFFFF_FFFF
    high: bool = False

    def holds(self, args: tuple[int, ...]) -> bool:
        """Whether 64-bit `args` pass."""
        word = args[self.arg] >> 32 if self.high else args[self.arg] & 0xFFFF_FFFF
        return (word & self.mask in self.values) is self.inside


class Rule(NamedTuple):
    """One refusal. The first rule of a call whose checks all hold decides."""

    name: str
    number: int
    errno: int
    """0: nothing happens, and the caller is told that it did."""
    reason: str
    checks: tuple[Check, ...] = ()
    quiet: bool = False
    """Refused by the kernel without a notification, so uncounted: ordinary programs probe for it."""
    bounded: bool = False
    """Allowed by the host as long as the sandbox holds few of what it makes; refused past that."""


def _deny(error: int, reason: str, *, quiet: bool = False, **calls: int) -> list[Rule]:
    return [Rule(name, number, error, reason, quiet=quiet) for name, number in calls.items()]


# clone(2), unshare(2): the flags that make a namespace. To clone, CLONE_NEWTIME is a part of the signal number.
NAMESPACE_FLAGS = {
    "CLONE_NEWTIME": 0x0000_0080,
    "CLONE_NEWNS": 0x0002_0000,
    "CLONE_NEWCGROUP": 0x0200_0000,
    "CLONE_NEWUTS": 0x0400_0000,
    "CLONE_NEWIPC": 0x0800_0000,
    "CLONE_NEWUSER": 0x1000_0000,
    "CLONE_NEWPID": 0x2000_0000,
    "CLONE_NEWNET": 0x4000_0000,
}
CLONE_NAMESPACES = sum(NAMESPACE_FLAGS.values()) & ~NAMESPACE_FLAGS["CLONE_NEWTIME"]
# CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM: what unshare may be asked for; all else is or may become a namespace.
_UNSHARE_ALLOWED = 0x0000_0100 | 0x0000_0200 | 0x0000_0400 | 0x0000_0800 | 0x0001_0000 | 0x0004_0000

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_STREAM, SOCK_DGRAM, SOCK_TYPE_MASK = 1, 2, 0xF
NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_AUDIT, NETLINK_KOBJECT_UEVENT = 0, 4, 9, 15
IPPROTO_MPTCP = 262
_INET_PROTOCOLS = (0, 1, 6, 17, 58)  # default, ICMP (unprivileged ping), TCP, UDP, ICMPv6
TERMINAL_IOCTLS = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCSETD": 0x5423}
# PER_LINUX32, UNAME26, ADDR_NO_RANDOMIZE: `setarch`, dpkg and sanitizers; 0xffffffff only asks.
_PERSONALITY_ALLOWED = 0x0000_0008 | 0x0002_0000 | 0x0004_0000

RLIMIT_CORE = 4

_CORE = "the agent's core limit of 1 keeps a crash from the host's dump program (core(5)); with 0 it would run"
_NESTED = "a namespace of its own gives a guest capabilities over kernel code that ordinary users never reach"
_MOUNTS = "changes or walks the mount table; a remount of a read-only bind was an escape"
_INET = "only TCP, UDP and ping sockets: other protocols load and reach rarely used kernel modules"

# Calls of which some arguments are refused. The kernel reads socket(2)'s three arguments, an ioctl(2) request, a
# personality(2) and a process number as 32-bit values and takes the lower 32 bits of clone(2)'s flags, so garbage above
# them must not hide anything (CVE-2019-10063). unshare(2) flags and pointers have 64 bits.
# fmt: off
_BY_ARGUMENT = [
    Rule("ioctl", 16, EPERM, "types into, or changes the line discipline of, a terminal shared with the outside",
         (Check(1, tuple(TERMINAL_IOCTLS.values())),)),
    Rule("clone", 56, EPERM, _NESTED, (Check(0, (0,), inside=False, mask=CLONE_NAMESPACES),)),
    Rule("unshare", 272, EPERM, _NESTED, (Check(0, (0,), inside=False, mask=~_UNSHARE_ALLOWED & 0xFFFF_FFFF),)),
    Rule("unshare", 272, EPERM, _NESTED, (Check(0, (0,), inside=False, high=True),)),
    Rule("personality", 135, EPERM, "weakens the address space of the next program (READ_IMPLIES_EXEC)",
         (Check(0, (0xFFFF_FFFF,), inside=False),
          Check(0, (0,), inside=False, mask=~_PERSONALITY_ALLOWED & 0xFFFF_FFFF))),
    # Only what sets limits (a new-limit pointer in either half) of a process named by number; asking is harmless.
    Rule("prlimit64", 302, EPERM, "changes the limits of another process, the agent included",
         (Check(0, (0,), inside=False), Check(2, (0,), inside=False))),
    Rule("prlimit64", 302, EPERM, "changes the limits of another process, the agent included",
         (Check(0, (0,), inside=False), Check(2, (0,), inside=False, high=True))),
    # Quietly nothing, with success: programs that switch core dumps off (gpg, ssh-agent) end when they cannot.
    Rule("setrlimit", 160, 0, _CORE, (Check(0, (RLIMIT_CORE,)),), quiet=True),
    *[Rule("prlimit64", 302, 0, _CORE,
           (Check(1, (RLIMIT_CORE,)), Check(2, (0,), inside=False, high=high)), quiet=True) for high in (False, True)],
    # vsock(7) has no namespace: it reaches the hypervisor from any sandbox. The others autoload modules and are reached
    # by no ordinary program (AF_ALG, AF_KEY, AF_TIPC, AF_RDS, AF_BLUETOOTH, ...); AF_PACKET also needs CAP_NET_RAW.
    Rule("socket", 41, EAFNOSUPPORT, "socket families other than UNIX, INET, INET6 and NETLINK",
         (Check(0, (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK), inside=False),)),
    # getaddrinfo(3) needs NETLINK_ROUTE. Others are probed for: libaudit (useradd, su, PAM) takes EPROTONOSUPPORT for
    # "kernel without audit", ss(8) and libudev fall back.
    Rule("socket", 41, EPROTONOSUPPORT, "netlink reaches much of the kernel; programs need only NETLINK_ROUTE",
         (Check(0, (AF_NETLINK,)), Check(2, (NETLINK_SOCK_DIAG, NETLINK_AUDIT, NETLINK_KOBJECT_UEVENT))), quiet=True),
    Rule("socket", 41, EPROTONOSUPPORT, "netlink reaches much of the kernel; programs need only NETLINK_ROUTE",
         (Check(0, (AF_NETLINK,)), Check(2, (NETLINK_ROUTE,), inside=False))),
    # What waits in a netlink socket's receive queue is charged to no cgroup, so the host counts the sockets.
    Rule("socket", 41, EMFILE, "netlink queues are charged to nobody, so a sandbox may hold few such sockets",
         (Check(0, (AF_NETLINK,)),), bounded=True),
    # SOCK_RAW needs CAP_NET_RAW, but modules are loaded before that is checked; (AF_INET, SOCK_PACKET) means AF_PACKET.
    Rule("socket", 41, EPERM, "only stream and datagram sockets: raw and packet sockets forge traffic",
         (Check(0, (AF_INET, AF_INET6)), Check(1, (SOCK_STREAM, SOCK_DGRAM), inside=False, mask=SOCK_TYPE_MASK))),
    Rule("socket", 41, EPROTONOSUPPORT, _INET, (Check(0, (AF_INET, AF_INET6)), Check(2, (IPPROTO_MPTCP,))), quiet=True),
    Rule("socket", 41, EPROTONOSUPPORT, _INET,
         (Check(0, (AF_INET, AF_INET6)), Check(2, _INET_PROTOCOLS, inside=False))),
    # No family but AF_UNIX (and TIPC) has pairs, yet the kernel creates both sockets, loading modules, to find out.
    Rule("socketpair", 53, EAFNOSUPPORT, "only AF_UNIX has pairs", (Check(0, (AF_UNIX,), inside=False),)),
]

_ENTIRELY = [
    # What the guest sees is built before it starts and is final. chroot(2) needs a capability that is dropped.
    *_deny(EPERM, _MOUNTS, mount=165, umount2=166, pivot_root=155, chroot=161, open_tree=428, move_mount=429,
           fsopen=430, fsconfig=431, fsmount=432, fspick=433, mount_setattr=442, open_tree_attr=467),
    # /proc/self/mountinfo says the same; libmount probes these and falls back to it.
    *_deny(ENOSYS, "new way into the mount table; /proc/self/mountinfo says the same", quiet=True,
           statmount=457, listmount=458),
    *_deny(EPERM, "enters a namespace, the way back to the host's", setns=308),
    # Large, young interfaces: most kernel escapes of the last years went through one of these.
    *_deny(EPERM, "in-kernel virtual machine", bpf=321),
    *_deny(EPERM, "system calls that bypass this filter, and a rich source of kernel bugs",
           io_uring_setup=425, io_uring_enter=426, io_uring_register=427),
    *_deny(EPERM, "stops the kernel in the middle of a copy, the usual aid of kernel exploits", userfaultfd=323),
    *_deny(EPERM, "measures the host and was a rich source of kernel bugs", perf_event_open=298),
    # Keyrings have no namespace of their own and are shared by everything with the same uid.
    *_deny(EPERM, "keyrings are not part of the sandbox", add_key=248, request_key=249, keyctl=250),
    # Processes of one uid trust each other in Linux; the agent runs under the uid of the guest's root.
    *_deny(EPERM, "controls or reads another process, the agent included", ptrace=101, process_vm_readv=310,
           process_vm_writev=311, pidfd_getfd=438),
    *_deny(EPERM, "compares kernel pointers of processes", kcmp=312),
    # File handles name inodes behind the guest's view of the tree (the "shocker" escape of 2014). name_to_handle_at
    # alone is harmless but useless; its errno is that of a file system without handles.
    *_deny(EPERM, "opens files by inode, past every mount", open_by_handle_at=304),
    *_deny(EOPNOTSUPP, "makes the handles for open_by_handle_at", name_to_handle_at=303),
    # The host's own state. All need a capability over the host that no guest has; refused twice, as a slip is fatal.
    *_deny(EPERM, "loads code into the kernel", init_module=175, finit_module=313, delete_module=176, kexec_load=246,
           kexec_file_load=320),
    *_deny(EPERM, "administers the host", reboot=169, swapon=167, swapoff=168, acct=163, quotactl=179, quotactl_fd=443,
           sethostname=170, setdomainname=171, settimeofday=164, clock_settime=227, vhangup=153),
    *_deny(EPERM, "port access", iopl=172, ioperm=173),
    *_deny(EPERM, "the kernel's log holds host addresses", syslog=103),
    *_deny(EPERM, "watches whole file systems; inotify(7) is there for programs", fanotify_init=300, fanotify_mark=301),
    *_deny(EPERM, "moves pages of other processes between nodes", migrate_pages=256, move_pages=279),
    # Resources that are counted for the whole host, so that one guest could take them from all.
    *_deny(ENOSYS, "fs.aio-max-nr is one counter for the whole host; a single call can use it up", io_setup=206),
    *_deny(ENOSYS, "splits the host's direct map, which slows the whole host; not reclaimable", memfd_secret=447),
    # Nothing a guest can write outlives it, so there is nothing to flush but the host's own data; with success.
    *_deny(0, "flushes the host's file systems, again and again if it likes", quiet=True, sync=162, syncfs=306),
    # Leftovers that some kernels still carry and no living program needs.
    *_deny(ENOSYS, "16-bit segments; a rich source of kernel bugs", modify_ldt=154),
    *_deny(ENOSYS, "obsolete", uselib=134, ustat=136, sysfs=139, _sysctl=156, create_module=174, get_kernel_syms=177,
           query_module=178, nfsservctl=180, lookup_dcookie=212),
]
# fmt: on

RULES: tuple[Rule, ...] = (*_BY_ARGUMENT, *_ENTIRELY)

# fmt: off
ALLOWED_NEW: dict[str, int] = {
    # Return points of the kernel's own probes; elsewhere they kill the caller. Filtering them breaks traced programs.
    "uretprobe": 335, "uprobe": 336,
    # On processes that the caller may signal anyway. process_madvise on others needs a capability that is dropped.
    "pidfd_send_signal": 424, "pidfd_open": 434, "process_madvise": 440, "process_mrelease": 448,
    # The agent needs it for CLONE_INTO_CGROUP and refuses it to its children by its own filter (kernel/seccomp.py).
    "clone3": 435,
    # Variants of old calls with the same checks.
    "close_range": 436, "openat2": 437, "faccessat2": 439, "epoll_pwait2": 441, "fchmodat2": 452, "setxattrat": 463,
    "getxattrat": 464, "listxattrat": 465, "removexattrat": 466, "file_getattr": 468, "file_setattr": 469,
    # Programs that confine themselves further (Chromium, OpenSSH, pacman).
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446, "mseal": 462,
    # Locks of Wine and of glibc to come; the shadow stacks of glibc.
    "futex_waitv": 449, "futex_wake": 454, "futex_wait": 455, "futex_requeue": 456, "map_shadow_stack": 453,
    # Own memory placement, page-cache figures of own files, own security attributes as in /proc/self/attr.
    "set_mempolicy_home_node": 450, "cachestat": 451, "lsm_get_self_attr": 459, "lsm_set_self_attr": 460,
    "lsm_list_modules": 461,
}
# fmt: on
