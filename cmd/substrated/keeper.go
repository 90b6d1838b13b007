package main

import (
	"context"
	"flag"
	"log/slog"
	"os"

	"substrate/agent/runtime"
)

// keeperCommand is not for people: the agent starts it, and it outlives the agent.
const keeperCommand = "keeper"

func keep(args []string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	flags := flag.NewFlagSet(keeperCommand, flag.ContinueOnError)
	dir := flags.String("dir", "", "state directory")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	if *dir == "" {
		log.Error("cannot run keeper: no state directory is named")
		return exitUsage
	}
	if err := runtime.Keep(context.Background(), runtime.KeeperOptions{Dir: *dir, Log: log}); err != nil {
		log.Error(err.Error())
		return exitFailed
	}
	return exitOK
}
