package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"substrate/coordinator"
	"substrate/coordinator/grant"
	"substrate/proto/apiv1"
)

// maxExport bounds an exported history: 10,000 grants of hundreds of bytes, or some of 100,000 definitions.
const maxExport = 256 << 20

func (a *app) grantHistoryCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "history ORGANIZATION", Short: "Show every grant that an organization has had", Args: cobra.ExactArgs(1),
		Long: "Show every grant that an organization has had, with what each changed. --export writes what `substrate grant verify`\n" +
			"needs to check the whole chain on a machine that reaches no coordinator.",
		RunE: func(cmd *cobra.Command, args []string) error {
			all := &apiv1.ListGrantHistoryResponse{}
			var err error
			all.Steps, err = pages(func(token string) ([]*apiv1.GrantStep, string, error) {
				r, err := get(cmd.Context(), a, "reading the history of the grant", (*connection).listGrantHistory,
					&apiv1.ListGrantHistoryRequest{Organization: args[0], PageSize: pageSize, PageToken: token})
				all.ClusterId, all.OrganizationId, all.Newest, all.Keys = r.GetClusterId(), r.GetOrganizationId(), r.GetNewest(), r.GetKeys()
				return r.GetSteps(), r.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			if file != "" {
				return a.exportHistory(file, all)
			}
			return a.showGrants(all)
		},
	}
	cmd.Flags().StringVar(&file, "export", "", "write the history to this file (- is standard output) for `substrate grant verify`")
	return cmd
}

func (a *app) grantRotateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rotate-key", Short: "Sign grants with a new key from now on", Args: cobra.NoArgs,
		Long: "Sign grants with a new key from now on. The private half of the one before is forgotten; what it has signed stays valid and\n" +
			"verifiable, and its key stays in what `substrate grant history --export` writes.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := invoke(cmd.Context(), a, "rotating the key of grants", longCallTimeout, (*connection).rotateGrantKey, &apiv1.RotateGrantKeyRequest{})
			if err != nil {
				return err
			}
			t := table{head: []string{"KEY", "BEFORE"}}
			t.add(r.GetKey(), r.GetKey(), r.GetPrevious())
			return a.show(r, t)
		},
	}
}

func (a *app) showGrants(r *apiv1.ListGrantHistoryResponse) error {
	t := table{head: []string{"SERIAL", "ISSUED", "ADDED", "REMOVED", "KEY", "SHA256"}, wide: 5, empty: "no grant was ever made"}
	for _, s := range r.GetSteps() {
		serial := fmt.Sprint(s.GetSerial())
		t.add(serial, serial, when(s.GetIssuedAt()), idsOf(s.GetAdded()), idsOf(s.GetRemoved()), keyOf(s.GetHeader()), s.GetDigest())
	}
	return a.show(r, t)
}

// idsOf names what a step changed, the first few of many.
func idsOf(entries []*apiv1.GrantEntry) string {
	const most = 5
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.GetId())
	}
	ids = slices.Compact(ids)
	switch {
	case len(ids) == 0:
		return "-"
	case len(ids) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
	}
	return strings.Join(ids, ", ")
}

// keyOf is the id of the key that a grant says it is signed with.
func keyOf(header string) string {
	raw, err := base64.RawURLEncoding.DecodeString(header)
	var h struct{ Kid string }
	if err != nil || json.Unmarshal(raw, &h) != nil || h.Kid == "" {
		return "-"
	}
	return h.Kid
}

func (a *app) exportHistory(file string, r *apiv1.ListGrantHistoryResponse) error {
	e := grant.Export{Cluster: r.GetClusterId(), Organization: coordinator.OrganizationID(r.GetOrganizationId()), Newest: r.GetNewest(),
		Keys: json.RawMessage(r.GetKeys()), History: []grant.Delta{}}
	entries := func(list []*apiv1.GrantEntry) (out []grant.Entry) {
		for _, e := range list {
			out = append(out, grant.Entry{ID: e.GetId(), Fingerprint: e.GetFingerprint()})
		}
		return out
	}
	for _, s := range r.GetSteps() {
		e.History = append(e.History, grant.Delta{Serial: grant.Serial(s.GetSerial()), IssuedAt: s.GetIssuedAt().AsTime(), Digest: grant.Digest(s.GetDigest()),
			Header: s.GetHeader(), Signature: s.GetSignature(), Added: entries(s.GetAdded()), Removed: entries(s.GetRemoved())})
	}
	data, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return failf(exitFailed, "", "cannot write the history: %v", err)
	}
	if file == "-" {
		_, err = a.out.Write(append(data, '\n'))
		return err
	}
	if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
		return failf(exitFailed, "", "cannot write the history: %v", err)
	}
	a.say("%d grants are in %s; check them with `substrate grant verify %s`", len(e.History), file, shellWord(file))
	return nil
}

func (a *app) grantVerifyCommand() *cobra.Command {
	var keys []string
	cmd := &cobra.Command{
		Use: "verify FILE", Short: "Check an exported history, without a coordinator", Args: cobra.ExactArgs(1),
		Long: "Check every signature and every link of a history that `substrate grant history --export` wrote (- is standard input).\n" +
			"A file alone shows that it is consistent, not who wrote it: name the cluster's keys with --key for that.",
		RunE: func(_ *cobra.Command, args []string) error {
			data, err := a.readFile(args[0], maxExport)
			if err != nil {
				return err
			}
			var e grant.Export
			if err := json.Unmarshal(data, &e); err != nil {
				return failf(exitFailed, "it is the file that `substrate grant history ORGANIZATION --export FILE` writes", "cannot read %s: %v", args[0], err)
			}
			trusted := make([]grant.KeyID, 0, len(keys))
			for _, k := range keys {
				trusted = append(trusted, grant.KeyID(k))
			}
			newest, err := e.Verify(trusted)
			if err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			a.say("valid: %d grants of organization %s on cluster %s, the newest of %s with %d definitions",
				newest.Serial, newest.OrganizationID, newest.ClusterID, newest.IssuedAt.Format("2006-01-02 15:04:05Z"), len(newest.IDs()))
			if len(keys) == 0 {
				a.warn("note: the keys are the file's own; --key KEY says which to trust, `substrate grant history` prints them")
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, "id of a key to trust (repeatable; default: those in the file)")
	return cmd
}
