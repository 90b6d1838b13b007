// Package bench measures the real programs: jobs a second, submission to start, memory, time to the first
// report. It asserts only that the work was done.
package bench
