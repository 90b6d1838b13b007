package vm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// KernelDir is where packaging/deps.sh leaves a kernel and its modules, which are installed nowhere.
const KernelDir = "/var/cache/substrate-tests/kernel"

// modules bring up the network card, in an order in which each finds those before it.
func modules() []string {
	return []string{"virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "failover", "net_failover", "virtio_net"}
}

// Missing says what of the things that virtual machines take is not here, "" when all is.
func Missing() string {
	if runtime.GOARCH != "amd64" {
		return "the kernel for machines is amd64's, this machine is " + runtime.GOARCH
	}
	for _, program := range []string{"qemu-system-x86_64", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			return program + " is not installed"
		}
	}
	for _, name := range append([]string{"vmlinuz"}, modules()...) {
		if name != "vmlinuz" {
			name += ".ko"
		}
		if _, err := os.Stat(filepath.Join(KernelDir, name)); err != nil {
			return err.Error()
		}
	}
	return ""
}

// sysinit is what a machine does before its user data. Its name, the coordinator's place and all else are in its metadata.
const sysinit = `#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm; mount -t devpts pts /dev/pts; mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for m in MODULES; do insmod /lib/modules/$m.ko || echo "cannot load $m"; done
ip link set lo up; ip addr add 169.254.0.15/16 dev eth0; ip link set eth0 up
ask() { printf '%s HTTP/1.0\r\nHost: 169.254.169.254\r\n%s\r\n\r\n' "$1" "$2" | nc 169.254.169.254 80 | sed '1,/^\r$/d'; }
tries=0
until token=$(ask 'PUT /latest/api/token' 'X-aws-ec2-metadata-token-ttl-seconds: 600') && [ -n "$token" ]; do
  sleep 0.5; tries=$((tries+1)); [ $tries -lt 20 ] || { echo 'no metadata'; poweroff -f; }
done
meta() { ask "GET /latest/$1" "X-aws-ec2-metadata-token: $token"; }
hostname "$(meta meta-data/instance-id)"
meta user-data >/run/user-data
echo "metadata: $(hostname), a $(cat /sys/class/dmi/id/product_name) of $(cat /sys/class/dmi/id/sys_vendor), user data $(wc -c </run/user-data) bytes"
/bin/sh /run/user-data
# What the agent writes is on the console, as on a cloud's.
(until [ -e /var/lib/substrate/boot.log ]; do sleep 0.2; done; tail -f /var/lib/substrate/boot.log >/dev/console) &
`

// initramfs makes the file system of all machines in dir, and returns its file.
func initramfs(dir, agent string) (string, error) {
	root := filepath.Join(dir, "root")
	files := []struct {
		name, text string
		mode       fs.FileMode
	}{
		{"etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n", 0o644},
		{"etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644},
		{"etc/os-release", "ID=substrate-test\nVERSION_ID=1\nPRETTY_NAME=\"machine of a test\"\n", 0o644},
		{"etc/inittab", "::sysinit:/etc/boot\n", 0o644},
		{"etc/boot", strings.Replace(sysinit, "MODULES", strings.Join(modules(), " "), 1), 0o755},
	}
	for _, d := range []string{"bin", "dev", "etc", "lib/modules", "proc", "root", "run", "sbin", "sys", "tmp", "usr/bin", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o1777|fs.ModeSticky); err != nil {
		return "", err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(root, f.name), []byte(f.text), f.mode); err != nil {
			return "", err
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return "", err
	}
	copies := map[string]string{busybox: "bin/busybox", agent: "usr/bin/substrated"}
	for _, m := range modules() {
		copies[filepath.Join(KernelDir, m+".ko")] = "lib/modules/" + m + ".ko"
	}
	for from, to := range copies {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(root, to), data, 0o755)
		}
		if err != nil {
			return "", err
		}
	}
	links := errors.Join(os.Symlink("busybox", filepath.Join(root, "bin/sh")), os.Symlink("../bin/busybox", filepath.Join(root, "sbin/init")))
	if links != nil {
		return "", links
	}
	file := filepath.Join(dir, "initramfs")
	cmd := exec.Command("sh", "-c", `find . | busybox cpio -o -H newc >"$1"`, "sh", file)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot pack the machines' file system: %w\n%s", err, out)
	}
	return file, nil
}
