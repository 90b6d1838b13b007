// Package crash kills real coordinators, agents and keepers while work runs, and asserts that nothing is
// lost, done twice or made up. It has no other code.
package crash
