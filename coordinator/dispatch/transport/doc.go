// Package transport runs a batch system's commands, on this machine or on a login node over SSH, and says of each how it ended and whether
// anything of it may still live. It understands no command and no answer.
package transport
