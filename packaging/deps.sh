#!/bin/sh
# Installs what the tests compare with or run: lscpu, lsblk, lsmem (util-linux), lspci (pciutils), pci.ids, numactl,
# a whole Slurm with its database, an SSH server, a client of EC2, and what virtual machines take. Nothing that is installed here is left running.
set -eu
missing=""
has() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; } # daemons are on root's path only
need() { # PACKAGE PROGRAM...
  package=$1; shift
  for program; do
    has "$program" || { missing="$missing $package"; return 0; }
  done
}
need util-linux lscpu lsblk lsmem setpriv
need pciutils lspci
[ -r /usr/share/misc/pci.ids ] || missing="$missing pci.ids"
need numactl numactl
need procps ps
need slurmctld slurmctld
need slurmd slurmd
need slurm-client sbatch squeue sacct scontrol
need slurmdbd slurmdbd
need munge munged
need mariadb-server-core mariadbd
need openssh-server sshd
/usr/bin/python3 -c 'import boto3' 2>/dev/null || missing="$missing python3-boto3" # a client of EC2 that is not ours
need openssh-client ssh-keygen ssh-agent ssh-add
machines=""
kernel=/var/cache/substrate-tests/kernel # of virtual machines; it is installed nowhere
if [ "$(uname -m)" = x86_64 ]; then
  need qemu-system-x86 qemu-system-x86_64
  need busybox-static busybox
  [ -r $kernel/vmlinuz ] || machines=yes
fi
[ -z "$missing$machines" ] && exit 0
if [ "$(id -u)" != 0 ]; then
  echo "cannot install packages: not root; run this as root, or: apt-get install --no-install-recommends$missing" >&2
  exit 1
fi
[ -z "$missing" ] || echo "installing:$missing"

# Packages of daemons start them. A policy-rc.d that refuses, see invoke-rc.d(8), is in place while they are unpacked.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  trap 'rm -f $policy' EXIT
  trap 'exit 1' HUP INT TERM
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod 755 $policy
fi
apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }
apt update || echo "cannot update the lists of packages: trying with those that are here" >&2
# shellcheck disable=SC2086 # a list of names
[ -z "$missing" ] || apt install -y --no-install-recommends $missing || {
  echo "cannot install$missing: see above; without a network, install these packages from elsewhere" >&2
  exit 1
}

# The kernel that a distribution makes for clouds, without its package: that would be installed for this machine to boot.
fetch_kernel() (
  set -e
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  chmod 755 "$dir"
  cd "$dir"
  package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
  apt-get -qq -o APT::Sandbox::User=root download "${package:-linux-image-cloud-amd64}"
  dpkg --fsys-tarfile ./*.deb | tar -x --wildcards './boot/vmlinuz*' '*/virtio*.ko*' '*/failover.ko*' '*/net_failover.ko*'
  find . -name '*.ko.xz' -exec xz -d {} +
  mkdir -p $kernel
  find . -name '*.ko' -exec mv {} $kernel/ \;
  mv boot/vmlinuz* $kernel/vmlinuz
)
if [ -n "$machines" ]; then
  echo "fetching a kernel for virtual machines"
  fetch_kernel || { echo "cannot fetch a kernel for virtual machines: see above" >&2; exit 1; }
fi
