#!/bin/sh
# Installs what the tests compare with or run: lscpu (util-linux), lspci (pciutils), numactl.
set -eu
missing=""
command -v lscpu >/dev/null || missing="$missing util-linux"
command -v lspci >/dev/null || missing="$missing pciutils"
command -v numactl >/dev/null || missing="$missing numactl"
command -v ps >/dev/null || missing="$missing procps"
[ -z "$missing" ] && exit 0
echo "installing:$missing"
apt-get update -qq
# shellcheck disable=SC2086 # a list of names
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
