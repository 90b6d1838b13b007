//go:build !linux || !cgo

package main

import (
	"fmt"

	"substrate/hwinfo"
)

// ask is that of a build without C.
func ask() (hwinfo.NVMLReport, error) {
	return hwinfo.NVMLReport{}, fmt.Errorf("%w: this build has no C", errNoLibrary)
}
