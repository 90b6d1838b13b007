package engine

import (
	"context"
	"errors"
	"strconv"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/grant"
)

// maxHistoryBytes ends a page of a history early: one step may name every definition there is.
const maxHistoryBytes = 1 << 20

// GrantHistory is a page of all grants that an organisation has had, the first one first. The last page has the grant
// that the history ends with and the keys, which is all that checking it offline needs.
func (e *Engine) GrantHistory(ctx context.Context, c Caller, organization string, p Page) (out grant.Export, next string, err error) {
	const op = "show grant history"
	var newest grant.Serial
	verr := e.view(ctx, func(s *state) {
		o, perr := s.permitted(c, auth.PermissionReadOrg, op, organization)
		if perr != nil {
			err = perr
			return
		}
		newest = o.newest.Serial
		out.Cluster, out.Organization, out.Newest = s.cluster.ID, o.ID, o.jws
		out.Keys, err = s.ring.Marshal()
	})
	if err = errors.Join(verr, err); err != nil {
		return grant.Export{}, "", err
	}
	prefix := prefixHistory + string(out.Organization) + "/"
	after := ""
	if p.Token != "" {
		serial, perr := strconv.ParseUint(p.Token, 10, 64)
		if perr != nil {
			return grant.Export{}, "", coordinator.Errorf(coordinator.ErrInvalid, op, "the page token is not one")
		}
		after = historyKey(out.Organization, serial)
	}
	entries, err := e.opt.Store.List(ctx, prefix, after, p.size()+1)
	if err != nil {
		return grant.Export{}, "", coordinator.Errorf(storeKind(err), op, "%w", err)
	}
	size := 0
	for i, entry := range entries {
		var step grant.Delta
		if err := decode(entry, &step); err != nil {
			return grant.Export{}, "", err
		}
		if step.Serial > newest {
			break // it was written after the view
		}
		if size += len(entry.Value); i > 0 && (i == p.size() || size > maxHistoryBytes) {
			next = strconv.FormatUint(uint64(out.History[i-1].Serial), 10)
			out.Newest, out.Keys = "", nil
			break
		}
		out.History = append(out.History, step)
	}
	return out, next, nil
}
