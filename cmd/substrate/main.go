// Command substrate is the command line for administrators and users. It holds flags and tables;
// everything it shows or changes lives in the coordinator.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}
