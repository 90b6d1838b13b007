// Package federation runs a Federate and two clusters as real processes in network namespaces of their own, whose links
// are cut. It holds no code that others use.
package federation
