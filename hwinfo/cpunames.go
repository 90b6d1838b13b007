package hwinfo

import (
	"fmt"
	"strconv"
	"strings"
)

// goArch maps a machine name of uname to GOARCH's spelling; one it does not know stays as it is.
func goArch(machine string, littleEndian bool) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "i386", "i486", "i586", "i686":
		return "386"
	case "aarch64":
		return "arm64"
	case "aarch64_be":
		return "arm64be"
	case "loongarch64":
		return "loong64"
	case "mips", "mips64": // one name for both byte orders
		if littleEndian {
			return machine + "le"
		}
		return machine
	}
	if strings.HasPrefix(machine, "armv") || machine == "arm" {
		return "arm"
	}
	return machine // ppc64le, ppc64, s390x, riscv64, sparc64 are the same
}

func (r *reader) arch(machine string) string {
	little := false
	if strings.HasPrefix(machine, "mips") {
		order, err := r.t.attr("sys/kernel/cpu_byteorder") // Linux 6.2
		little = err == nil && order == "little"
	}
	return goArch(machine, little)
}

// armName decodes MIDR's implementer and part.
func armName(implementer, part string) (vendor, model string) {
	imp, err := strconv.ParseUint(strings.TrimPrefix(implementer, "0x"), 16, 8)
	if err != nil {
		return "", ""
	}
	v := lookup(armVendors, fmt.Sprintf("%02x", imp))
	p, err := strconv.ParseUint(strings.TrimPrefix(part, "0x"), 16, 12)
	if err != nil {
		return v, ""
	}
	return v, lookup(armParts, fmt.Sprintf("%02x %03x", imp, p))
}

// lookup finds the text behind a key in a table of lines "key text".
func lookup(table, key string) string {
	for line := range strings.SplitSeq(table, "\n") {
		if rest, ok := strings.CutPrefix(line, key+" "); ok {
			return rest
		}
	}
	return ""
}

// armVendors: implementer of MIDR. 0 is reserved for software and says nothing.
const armVendors = `
41 ARM
42 Broadcom
43 Cavium
44 DEC
46 Fujitsu
48 HiSilicon
49 Infineon
4d Motorola
4e NVIDIA
50 APM
51 Qualcomm
53 Samsung
56 Marvell
61 Apple
66 Faraday
69 Intel
6d Microsoft
70 Phytium
c0 Ampere
`

// armParts: implementer and part of cores met in servers and boards, as in the kernel's cputype.h.
const armParts = `
41 920 ARM920T
41 926 ARM926EJ-S
41 b36 ARM1136
41 b56 ARM1156
41 b76 ARM1176
41 c05 Cortex-A5
41 c07 Cortex-A7
41 c08 Cortex-A8
41 c09 Cortex-A9
41 c0d Cortex-A17
41 c0e Cortex-A17
41 c0f Cortex-A15
41 d01 Cortex-A32
41 d02 Cortex-A34
41 d03 Cortex-A53
41 d04 Cortex-A35
41 d05 Cortex-A55
41 d06 Cortex-A65
41 d07 Cortex-A57
41 d08 Cortex-A72
41 d09 Cortex-A73
41 d0a Cortex-A75
41 d0b Cortex-A76
41 d0c Neoverse-N1
41 d0d Cortex-A77
41 d0e Cortex-A76AE
41 d40 Neoverse-V1
41 d41 Cortex-A78
41 d42 Cortex-A78AE
41 d43 Cortex-A65AE
41 d44 Cortex-X1
41 d46 Cortex-A510
41 d47 Cortex-A710
41 d48 Cortex-X2
41 d49 Neoverse-N2
41 d4a Neoverse-E1
41 d4b Cortex-A78C
41 d4c Cortex-X1C
41 d4d Cortex-A715
41 d4e Cortex-X3
41 d4f Neoverse-V2
41 d80 Cortex-A520
41 d81 Cortex-A720
41 d82 Cortex-X4
41 d83 Neoverse-V3AE
41 d84 Neoverse-V3
41 d85 Cortex-X925
41 d87 Cortex-A725
41 d8e Neoverse-N3
42 0af ThunderX2
43 0af ThunderX2
42 516 Vulcan
43 0a0 ThunderX
43 0a1 ThunderX
43 0a2 ThunderX-81XX
43 0a3 ThunderX-83XX
43 0b8 ThunderX3
46 001 A64FX
46 003 MONAKA
48 d01 TaiShan-v110
48 d02 TaiShan-v120
4e 000 Denver
4e 003 Denver-2
4e 004 Carmel
4e 010 Olympus
50 000 X-Gene
51 800 Kryo
51 802 Kryo
51 c00 Falkor
51 c01 Saphira
51 001 Oryon
61 022 Icestorm-M1
61 023 Firestorm-M1
61 024 Icestorm-M1-Pro
61 025 Firestorm-M1-Pro
61 028 Icestorm-M1-Max
61 029 Firestorm-M1-Max
61 032 Blizzard-M2
61 033 Avalanche-M2
61 034 Blizzard-M2-Pro
61 035 Avalanche-M2-Pro
61 038 Blizzard-M2-Max
61 039 Avalanche-M2-Max
6d d49 Azure-Cobalt-100
70 662 FTC662
70 663 FTC663
70 862 FTC862
c0 ac3 Ampere-1
c0 ac4 Ampere-1A
c0 ac5 Ampere-1B
`

// riscvVendors: JEDEC numbers of mvendorid.
const riscvVendors = `
0x489 SiFive
0x5b7 T-Head
0x31e Andes
0x710 SpacemiT
0x61f Ventana
`
