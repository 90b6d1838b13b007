// Package sim simulates whole clusters.
package sim
