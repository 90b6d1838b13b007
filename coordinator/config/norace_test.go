//go:build !race

package config

// raceSlowdown is how much longer the race detector may take.
const raceSlowdown = 1
