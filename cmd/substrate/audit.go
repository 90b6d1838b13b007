package main

import (
	"cmp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/proto/apiv1"
	"substrate/strictyaml"
)

func (a *app) auditCommand() *cobra.Command {
	var since string
	req := &apiv1.ListAuditRequest{}
	cmd := &cobra.Command{
		Use: "audit", Short: "Show who changed what, and what was refused", Args: cobra.NoArgs,
		Long: "Show who changed what, and what was refused, oldest first: all of it for cluster administrators, for owners of an\n" +
			"organization what is about it. -o json has the sha256 of each changed record before and after.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := timeBefore(time.Now(), since)
			if err != nil {
				return err
			}
			req.Since = timestamppb.New(from)
			r := &apiv1.ListAuditResponse{}
			r.Entries, err = pages(func(token string) ([]*apiv1.AuditEntry, string, error) {
				req.PageSize, req.PageToken = pageSize, token
				p, err := get(cmd.Context(), a, "reading the audit log", (*connection).listAudit, req)
				return p.GetEntries(), p.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return a.showAudit(r)
		},
	}
	f := cmd.Flags()
	f.StringVar(&since, "since", "24h", "how far back, as 24h or 7d, or from when, as 2026-01-31 or 2026-01-31T12:00:00Z")
	f.StringVar(&req.User, "user", "", "only what this user did, by name or id; or this node")
	f.StringVar(&req.Object, "object", "", "only what is about this, by name or id")
	f.StringVar(&req.Verb, "verb", "", "only this, as UpdateGroup, or a part of it")
	return cmd
}

// timeBefore reads a duration back from now, or a time.
func timeBefore(now time.Time, text string) (time.Time, error) {
	if d, err := strictyaml.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, failf(exitUsage, "write 24h, 7d, 2026-01-31 or 2026-01-31T12:00:00Z", "cannot read --since %q: it is neither a duration nor a time", text)
}

func (a *app) showAudit(r *apiv1.ListAuditResponse) error {
	t := table{
		head: []string{"TIME", "WHO", "FROM", "VERB", "OBJECT", "OUTCOME", "MESSAGE", "TOKEN", "RECORDS", "REQUEST"}, wide: 8,
		empty: "nothing was changed in this time",
	}
	for _, e := range r.GetEntries() {
		who := e.GetUser()
		if e.GetNode() != "" {
			who = "node " + e.GetNode()
		}
		object := e.GetObject()
		if kind, _, ok := strings.Cut(object, "/"); ok && e.GetName() != "" {
			object = kind + "/" + e.GetName()
		}
		t.add(e.GetRequestId(), when(e.GetTime()), who, e.GetFrom(), e.GetVerb(), object, e.GetOutcome(), cmp.Or(e.GetMessage(), e.GetAction()),
			cmp.Or(e.GetTokenName(), e.GetToken()),
			nonzero(uint32(len(e.GetRecords()))+e.GetMoreRecords()), e.GetRequestId())
	}
	return a.show(r, t)
}
