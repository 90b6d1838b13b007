// Package arch holds the tests that keep the repository's import law and style. It has no other code.
package arch
