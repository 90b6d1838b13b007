// Package clouds tests nodes that are instances of a cloud, from a workflow to the end of the instance, with the real programs and the clouds of tests/fakecloud.
package clouds
