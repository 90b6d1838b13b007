// Package login holds tests that log in through the real programs at a real OpenID provider. It tests no part of the
// provider.
package login
