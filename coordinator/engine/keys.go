package engine

import (
	"fmt"

	"substrate/coordinator"
)

// Keys of the store. Numbers are padded so that key order is number order.
const (
	keyCluster        = "cluster"
	keyCA             = "secret/ca"
	keySequence       = "event-sequence" // of the last event; may be ahead of it
	keyFence          = "fence"          // written with every deletion, see tx.group
	keyLifetime       = "certificate-lifetime"
	keySpent          = "discovery-spent"
	prefixGrantKey    = "secret/grant-key/"
	keyGrantRing      = "grant-keys"   // public, once the key was rotated: of all keys that signed grants
	prefixConfig      = "config/"      // config/<revision>: who, when, sha256
	prefixYAML        = "config-yaml/" // config-yaml/<revision>: the bytes as given
	prefixOrg         = "organization/"
	prefixGroup       = "group/"
	prefixUser        = "user/"
	prefixToken       = "token/"
	prefixJoin        = "join-token/"
	prefixRevoked     = "revoked/" // revoked/<node>: its certificates from before a time
	prefixAudit       = "audit/"   // audit/<nanoseconds>/<request>
	prefixGrant       = "grant/"
	prefixSerial      = "grant-serial/" // apart from the grant, or a rollback would be invisible
	prefixHistory     = "grant-history/"
	prefixWorkflow    = "workflow/"
	prefixAlloc       = "allocation/"
	prefixHold        = "hold/"    // hold/<allocation>: room made for it
	prefixExpired     = "expired/" // of a workflow that is gone: its other records go too
	prefixNode        = "node/"
	prefixReservation = "reservation/"
	prefixWindow      = "maintenance/"
	prefixStatus      = "status-history/" // status-history/<number>, ascending
	prefixFacts       = "node-facts/"
	prefixLaunch      = "launch/"
	prefixDiscovery   = "discovery/" // types to be looked at
	prefixHardware    = "hardware/"  // what nodes of a type have reported, kept when they are gone
	prefixUnjoined    = "unjoined/"  // unjoined/<definition>: its launches that never joined
	prefixCatalogue   = "catalogue/" // what a place's provider has told of its types
	prefixEvent       = "event/"

	keyFederate      = "federation/federate"   // whom this cluster belongs to
	prefixFederation = "federation/token/"     // with which a Federate enrols
	prefixWithdrawn  = "federation/withdrawn/" // submissions that must not arrive any more
	prefixRemote     = "federation/cluster/"   // on a Federate: the clusters it routes to
	prefixRoute      = "federation/route/"     // and what it routed
	prefixRouteFile  = "federation/file/"      // as it was submitted, until it has arrived
	prefixPush       = "federation/push/"      // grants that some clusters do not have yet
)

func configKey(rev coordinator.Revision) string { return fmt.Sprintf("%s%020d", prefixConfig, rev) }
func yamlKey(rev coordinator.Revision) string   { return fmt.Sprintf("%s%020d", prefixYAML, rev) }

func historyKey(org coordinator.OrganizationID, serial uint64) string {
	return fmt.Sprintf("%s%s/%020d", prefixHistory, org, serial)
}

func statusKey(number uint64) string { return fmt.Sprintf("%s%020d", prefixStatus, number) }

// eventKey files events under their workflow; those of the cluster stand under "-".
func eventKey(wf coordinator.WorkflowID, seq uint64) string {
	if wf == "" {
		wf = "-"
	}
	return fmt.Sprintf("%s%s/%020d", prefixEvent, wf, seq)
}
