package strictyaml

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// ParseSize reads a number of bytes: "64GiB", "1.5 TB", "4096". Units are B, kB or KB, MB,
// GB, TB, PB (powers of 1000) and KiB, MiB, GiB, TiB, PiB (powers of 1024). The result is a
// whole number of bytes below 2^63.
func ParseSize(s string) (uint64, error) {
	end := 0
	for end < len(s) && (s[end] >= '0' && s[end] <= '9' || s[end] == '.') {
		end++
	}
	number, unit := s[:end], strings.TrimLeft(s[end:], " ")
	if number == "" || len(number) > 32 || number[0] == '.' || number[len(number)-1] == '.' {
		return 0, fmt.Errorf("%s is not a size", quoted(s))
	}
	scale, ok := sizeUnit(unit)
	if !ok {
		return 0, fmt.Errorf("%s has the unknown unit %s", quoted(s), quoted(unit))
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, fmt.Errorf("%s is not a size", quoted(s))
	}
	r.Mul(r, new(big.Rat).SetInt(new(big.Int).SetUint64(scale)))
	if !r.IsInt() {
		return 0, fmt.Errorf("%s is not a whole number of bytes", quoted(s))
	}
	if !r.Num().IsInt64() {
		return 0, fmt.Errorf("%s is too large: sizes are below 8192PiB", quoted(s))
	}
	return r.Num().Uint64(), nil
}

func sizeUnit(unit string) (uint64, bool) {
	switch unit {
	case "", "B":
		return 1, true
	case "kB", "KB":
		return 1e3, true
	case "MB":
		return 1e6, true
	case "GB":
		return 1e9, true
	case "TB":
		return 1e12, true
	case "PB":
		return 1e15, true
	case "KiB":
		return 1 << 10, true
	case "MiB":
		return 1 << 20, true
	case "GiB":
		return 1 << 30, true
	case "TiB":
		return 1 << 40, true
	case "PiB":
		return 1 << 50, true
	}
	return 0, false
}

// Size reads bytes: a text with a unit, or a bare whole number of bytes.
func (v Value) Size() (uint64, bool) {
	if v.isNumber("!!int") {
		n, ok := v.Int(0, math.MaxInt64)
		return uint64(n), ok
	}
	if !v.IsText() {
		v.wrongType("a size such as 256GiB", "")
		return 0, false
	}
	n, err := ParseSize(v.node.Value)
	if err != nil {
		v.Report(SeverityError, CodeValue, err.Error(), sizeHint(v.node.Value))
		return 0, false
	}
	return n, true
}

// sizeHint proposes the unit that is closest to one written wrongly.
func sizeHint(s string) string {
	number := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	unit := strings.ToLower(strings.TrimLeft(s[len(number):], " "))
	if _, known := sizeUnit(strings.TrimLeft(s[len(number):], " ")); known && number != "" {
		return "" // the number is what is wrong
	}
	if number != "" && unit != "" && strings.Contains("kmgtp", unit[:1]) {
		u := strings.ToUpper(unit[:1])
		if unit == strings.ToLower(u)+"b" {
			return "write " + number + u + "B"
		}
		if len(unit) == 1 || unit[1] == 'i' {
			return "write " + number + u + "iB"
		}
	}
	return "units are B, KB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB"
}

// ParseDuration reads Go's notation with days in front: "60s", "1h30m", "30d", "1d12h".
func ParseDuration(s string) (time.Duration, error) {
	days, rest := time.Duration(0), s
	digits := 0
	for digits < len(s) && s[digits] >= '0' && s[digits] <= '9' {
		digits++
	}
	if digits > 0 && digits < len(s) && s[digits] == 'd' {
		n, err := strconv.Atoi(s[:digits])
		if err != nil || n > 36500 {
			return 0, fmt.Errorf("%s is too long", quoted(s))
		}
		days, rest = time.Duration(n)*24*time.Hour, s[digits+1:]
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || strings.HasPrefix(rest, "+") || days > 0 && d < 0 {
		return 0, fmt.Errorf("%s is not a duration", quoted(s))
	}
	if d > math.MaxInt64-days {
		return 0, fmt.Errorf("%s is too long", quoted(s))
	}
	return days + d, nil
}

// maxDuration keeps sums of durations and times far from overflow.
const maxDuration = 100 * 365 * 24 * time.Hour

// Duration reads a duration with its unit, not negative. 0 needs none.
func (v Value) Duration() (time.Duration, bool) { return v.duration(false) }

// Seconds is Duration for keys whose bare number counts seconds.
func (v Value) Seconds() (time.Duration, bool) { return v.duration(true) }

func (v Value) duration(bare bool) (time.Duration, bool) {
	const expected = "a duration such as 60s or 2h"
	if v.isNumber("!!int", "!!float") {
		if v.node.Value != "0" && !bare {
			v.wrongType(expected, "write "+v.node.Value+"s for seconds")
			return 0, false
		}
		f, ok := v.Float(0, maxDuration.Seconds())
		return time.Duration(math.Round(f * 1e9)), ok
	}
	if v.node.Kind != yaml.ScalarNode || v.node.Tag != "!!str" {
		v.wrongType(expected, "")
		return 0, false
	}
	d, err := ParseDuration(v.node.Value)
	switch {
	case err != nil:
		v.Report(SeverityError, CodeValue, err.Error(), "write 90s, 30m, 2h, 1h30m or 7d")
	case d < 0:
		v.Errorf(CodeValue, "the duration %s is negative", v.node.Value)
	case d > maxDuration:
		v.Errorf(CodeValue, "the duration %s is longer than 100 years", v.node.Value)
	default:
		return d, true
	}
	return 0, false
}
