package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"substrate/strictyaml"
)

// Backend is a named connection to a cloud or batch system. Fields of other kinds are zero. Its JSON is what is stored with launches.
type Backend struct {
	Name string `json:"name,omitempty"`
	Kind string `json:"kind,omitempty"`

	// slurm and pbs
	Transport         Transport      `json:"transport,omitzero"`
	ReadOnly          bool           `json:"readOnly,omitempty"`
	CessationCommand  []string       `json:"cessationCommand,omitempty"`
	PollInterval      *time.Duration `json:"pollInterval,omitempty"` // nil is the adapter's choice, like the next two
	CredentialTTL     *time.Duration `json:"credentialTTL,omitempty"`
	Skew              *time.Duration `json:"skew,omitempty"`
	AllowSiteIdentity bool           `json:"allowSiteIdentity,omitempty"` // pilots may run as the account that submits them

	// clouds
	Region         string `json:"region,omitempty"`
	Project        string `json:"project,omitempty"`
	Subscription   string `json:"subscription,omitempty"`
	ResourceGroup  string `json:"resourceGroup,omitempty"`
	Compartment    string `json:"compartment,omitempty"`
	Kubeconfig     string `json:"kubeconfig,omitempty"`     // path
	Namespace      string `json:"namespace,omitempty"`      // of a Kubernetes cluster; "" is the provisioner's choice, like the next but one
	AgentImage     string `json:"agentImage,omitempty"`     // of a container that has the agent
	StateDir       string `json:"stateDir,omitempty"`       // of agents on nodes
	Endpoint       string `json:"endpoint,omitempty"`       // URL; "" is the vendor's own
	CredentialFile string `json:"credentialFile,omitempty"` // path; secrets never stand in the configuration
}

// Transport is how commands of a batch system are run: here, or on SSH's host.
type Transport struct {
	SSH *SSH `json:"ssh,omitempty"`
}

// SSH names a login node.
type SSH struct {
	Host       string `json:"host,omitempty"`
	Port       uint16 `json:"port,omitempty"`
	User       string `json:"user,omitempty"`
	KeyFile    string `json:"keyFile,omitempty"`
	KnownHosts string `json:"knownHosts,omitempty"`
}

// Implicit is the connection of a kind when the configuration names none: commands run
// here, clouds take the ambient credentials.
func Implicit(kind string) Backend { return Backend{Kind: kind} }

// DecodeBackend reads one element of `backends`.
func DecodeBackend(v strictyaml.Value) (Backend, bool) {
	var b Backend
	o := v.Object()
	var named, kinded bool
	b.Name, named = strictyaml.Required(o, "name", strictyaml.Matching(
		regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`).MatchString, "a name of 1 to 128 letters, digits, . _ -"))
	b.Kind, kinded = strictyaml.Required(o, "kind", strictyaml.OneOf(Kinds()[1:]...)) // static needs none
	if !kinded {
		return b, false // the other keys cannot be judged
	}
	if Batch(b.Kind) {
		b.batch(o)
	} else {
		b.cloud(o)
	}
	for _, key := range backendKeys() {
		o.Refuse(key, fmt.Sprintf("the key %s does not belong to a %s backend", key, b.Kind), "")
	}
	o.Close()
	return b, named
}

func backendKeys() []string {
	return []string{"transport", "readOnly", "cessationCommand", "pollInterval", "credentialTTL", "skew", "allowSiteIdentity",
		"region", "project", "subscription", "resourceGroup", "compartment", "kubeconfig", "namespace", "agentImage", "stateDir", "endpoint", "credentialFile"}
}

func (b *Backend) batch(o *strictyaml.Object) {
	if v := o.Take("transport"); v.Valid() {
		b.Transport, _ = decodeTransport(v)
	}
	b.ReadOnly = isSet(o, "readOnly")
	b.CessationCommand = words(o, "cessationCommand")
	b.PollInterval = strictyaml.Optional(o, "pollInterval", positive)
	b.CredentialTTL = strictyaml.Optional(o, "credentialTTL", strictyaml.Value.Duration)
	b.Skew = strictyaml.Optional(o, "skew", strictyaml.Value.Duration)
	b.AllowSiteIdentity = isSet(o, "allowSiteIdentity")
}

func positive(v strictyaml.Value) (time.Duration, bool) {
	d, ok := v.Duration()
	if ok && d < time.Second {
		v.Errorf(strictyaml.CodeValue, "the duration %s is shorter than 1s", d)
		return 0, false
	}
	return d, ok
}

func decodeTransport(v strictyaml.Value) (Transport, bool) {
	if !v.IsMap() {
		_, ok := strictyaml.OneOf("local")(v)
		return Transport{}, ok
	}
	o := v.Object()
	defer o.Close()
	local, ssh := o.Take("local"), o.Take("ssh")
	switch {
	case local.Valid() && ssh.Valid():
		v.Errorf(strictyaml.CodeValue, "a transport is either local or ssh")
		return Transport{}, false
	case ssh.Valid():
		return decodeSSH(ssh)
	case local.Valid():
		local.Object().Close()
		return Transport{}, true
	}
	v.Errorf(strictyaml.CodeMissing, "expected local or ssh")
	return Transport{}, false
}

func decodeSSH(v strictyaml.Value) (Transport, bool) {
	o := v.Object()
	defer o.Close()
	s := &SSH{}
	var ok bool
	// A leading - would be read as an option by the ssh program.
	s.Host, ok = strictyaml.Required(o, "host", strictyaml.Matching(
		regexp.MustCompile(`^[A-Za-z0-9:\[][A-Za-z0-9.:\]_-]{0,254}$`).MatchString, "a host name or address"))
	s.Port = uint16(strictyaml.Default(o, "port", 22, strictyaml.Ints[uint32](1, 65535)))
	s.User = strictyaml.Default(o, "user", "", strictyaml.Matching(
		regexp.MustCompile(`^[a-z_A-Z0-9][a-zA-Z0-9_.-]{0,63}$`).MatchString, "a user name"))
	s.KeyFile = strictyaml.Default(o, "keyFile", "", FilePath)
	s.KnownHosts = strictyaml.Default(o, "knownHosts", "", FilePath)
	return Transport{SSH: s}, ok
}

// FilePath reads an absolute, clean path.
func FilePath(v strictyaml.Value) (string, bool) {
	s, ok := Word(v)
	if !ok {
		return "", false
	}
	if !strings.HasPrefix(s, "/") || path.Clean(s) != s {
		v.Errorf(strictyaml.CodeValue, "expected an absolute path without . and .. elements")
		return "", false
	}
	return s, true
}

func (b *Backend) cloud(o *strictyaml.Object) {
	text := func(key string) string { return strictyaml.Default(o, key, "", Word) }
	switch b.Kind {
	case KindAWS:
		b.Region = text("region")
	case KindGCP:
		b.Project, b.Region = text("project"), text("region")
	case KindAzure:
		b.Subscription, b.ResourceGroup, b.Region = text("subscription"), text("resourceGroup"), text("region")
	case KindOCI:
		b.Compartment, b.Region = text("compartment"), text("region")
	case KindCoreWeave:
		b.Kubeconfig = strictyaml.Default(o, "kubeconfig", "", FilePath)
		b.Namespace = strictyaml.Default(o, "namespace", "", strictyaml.Matching(
			regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`).MatchString, "a name of 1 to 63 lower-case letters, digits and -"))
		b.AgentImage = strictyaml.Default(o, "agentImage", "", strictyaml.Matching(
			regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._:/@-]{0,511}$`).MatchString, "the name of a container image"))
		b.StateDir = strictyaml.Default(o, "stateDir", "", FilePath)
	}
	b.Endpoint = strictyaml.Default(o, "endpoint", "", strictyaml.Matching(
		regexp.MustCompile(`^https?://[^\s/@]+(/[^\s@]*)?$`).MatchString, "an http or https address without user and password"))
	b.CredentialFile = strictyaml.Default(o, "credentialFile", "", FilePath)
}

// target is what makes two connections the same place. Names and credentials do not count:
// renaming a backend or changing its key leads to the same machines.
func (b Backend) target() []string {
	t := []string{b.Region, b.Project, b.Subscription, b.ResourceGroup, b.Compartment, b.Kubeconfig, b.Endpoint}
	if s := b.Transport.SSH; s != nil {
		t = append(t, fmt.Sprintf("%s@%s:%d", s.User, s.Host, s.Port))
	}
	return t
}

// Target tells connections to different places apart, and those to the same place not: "" is the one that is taken where nothing is said of it.
func (b Backend) Target() string {
	t := b.target()
	if !slices.ContainsFunc(t, func(s string) bool { return s != "" }) {
		return ""
	}
	sum := sha256.Sum256([]byte(fmt.Sprintf("%q", t)))
	return hex.EncodeToString(sum[:8])
}

// Fingerprint identifies the kind and the place that a definition points at: the
// connection's target and, inside it, the type pattern, zone, partition or queue as
// written. Grants bind to it. Resources, costs, conditions and policies do not count.
func Fingerprint(d *Decoded, c Backend) string {
	var b strings.Builder
	write := func(parts ...string) {
		for _, p := range parts {
			b.WriteString(strconv.Itoa(len(p)) + ":" + p + ",")
		}
		b.WriteByte(';')
	}
	write("substrate target 1", d.Kind)
	write(c.target()...)
	write(d.target...)
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:16])
}
