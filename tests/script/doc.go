// Package script tells stories in testdata/*.txtar through the three real programs on loopback. It holds no
// test of a single package, and nothing that needs a daemon to be killed: that is tests/crash.
package script
