package store

import (
	"context"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// schemaVersion is the layout of keys and values this program writes.
const schemaVersion = 1

// migration brings a store from version From to From+1. It must be safe to run twice: a crash may
// come before the new version is noted.
type migration struct {
	From int
	Run  func(ctx context.Context, c *client) error
}

// migrations lists every step from version 1 on, in order.
func migrations() []migration { return nil }

// checkSchema notes the version in a new store, refuses a newer one and migrates an older one.
func (c *client) checkSchema(ctx context.Context, want int, steps []migration) error {
	key := c.meta("schema")
	resp, err := c.etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, strconv.Itoa(want))).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return fmt.Errorf("schema version: %w", err)
	}
	if resp.Succeeded {
		return nil
	}
	kv := resp.Responses[0].GetResponseRange().Kvs[0]
	have, err := strconv.Atoi(string(kv.Value))
	if err != nil || have < 1 {
		return fmt.Errorf("schema version %q is not a number", kv.Value)
	}
	if have > want {
		return fmt.Errorf("its schema version %d is newer than this program's %d; upgrade the program", have, want)
	}
	for ; have < want; have++ {
		step, ok := stepFrom(steps, have)
		if !ok {
			return fmt.Errorf("no way from schema version %d to %d", have, have+1)
		}
		if err := step.Run(ctx, c); err != nil {
			return fmt.Errorf("schema version %d to %d: %w", have, have+1, err)
		}
		if _, err := c.etcd.Put(ctx, key, strconv.Itoa(have+1)); err != nil {
			return fmt.Errorf("note schema version %d: %w", have+1, err)
		}
	}
	return nil
}

func stepFrom(steps []migration, version int) (migration, bool) {
	for _, s := range steps {
		if s.From == version {
			return s, true
		}
	}
	return migration{}, false
}
