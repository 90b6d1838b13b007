// Package slurm is the adapter of a Slurm cluster: it speaks to one through its commands as an ordinary account, and says of each cluster what
// it found out that can be counted on there. It keeps no record of jobs, decides nothing about them, and runs nothing itself.
//
// Answers are read as text, whose form has been the same for many releases, between separators that are drawn anew for each call: whatever
// stands in a job's name or comment, no row can be mistaken for another. Numbers of time are asked for as seconds.
package slurm
