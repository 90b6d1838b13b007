// Package expr is how rules are written: the language, its three environments (node, request,
// priority) and its limits. It reads no file, knows no clock and never decides who gets a node.
package expr
