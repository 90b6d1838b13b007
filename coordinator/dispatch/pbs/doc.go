// Package pbs is the adapter of a PBS complex (OpenPBS, PBS Professional): it speaks to one through its commands as an ordinary account, and
// says of each complex what it found out that can be counted on there. It keeps no record of jobs, decides nothing about them, and runs nothing
// itself.
//
// Listings are read as JSON where that is sound. PBS writes JSON that is none whenever some user's text asks for it, and a user can write
// attributes twice; then the same is asked for as one line for each job, between separators that are drawn anew for each call, and at last job by
// job. Nothing but this account's own jobs is believed to carry a mark of ours.
//
// # The gate and holds
//
// The gate is the user's hold that qsub -h places and qrls takes away. A hold of the contract is an Execution_Time in the year 2100, with the
// instance as its seconds: one attribute that PBS itself obeys, that the owner may change while the job waits, that neither qhold nor qrls
// touches, and that comes back in every listing, so that it can be decoded from the job alone.
//
// # What the states mean
//
// The letter R does not mean that a script runs, F not that it ended well, and Exit_status is a leftover until the letter is F. See judge.
package pbs
