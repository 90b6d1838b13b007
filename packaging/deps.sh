#!/bin/sh
# Installs what the tests compare with or run: lscpu, lsblk, lsmem (util-linux), lspci (pciutils), pci.ids, numactl, slurmd.
set -eu
missing=""
command -v lscpu >/dev/null && command -v lsblk >/dev/null && command -v lsmem >/dev/null || missing="$missing util-linux"
command -v lspci >/dev/null || missing="$missing pciutils"
[ -r /usr/share/misc/pci.ids ] || missing="$missing pci.ids"
command -v numactl >/dev/null || missing="$missing numactl"
[ -x /usr/sbin/slurmd ] || command -v slurmd >/dev/null || missing="$missing slurmd"
command -v ps >/dev/null || missing="$missing procps"
[ -z "$missing" ] && exit 0
echo "installing:$missing"
apt-get update -qq
# shellcheck disable=SC2086 # a list of names
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
