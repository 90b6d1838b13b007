// Package agree holds what the agent says of this machine to what other programs and libraries say of it.
package agree
