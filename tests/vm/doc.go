// Package vm boots instances of tests/fakecloud as virtual machines of this one: a distribution's cloud kernel on emulated processors, a busybox
// and the agent. A machine reads its metadata and user data over the network as on EC2, and knows nothing else. It emulates no disk, no GPU and no image:
// what a machine needs is in memory from the start.
package vm
