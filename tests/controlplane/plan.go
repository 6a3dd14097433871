package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	adminKubeconfig = "admin.kubeconfig"
	auditLog        = "audit.log"
	auditPolicy     = "audit-policy.json"
	stateFile       = "state.json"
	etcdName        = "default"
)

// plan is the state that all starts in one directory share.
type plan struct {
	dir   string
	ports ports
}

type ports struct {
	APIServer  int `json:"apiserver"`
	EtcdClient int `json:"etcd_client"`
	EtcdPeer   int `json:"etcd_peer"`
}

// openPlan reads the plan of a directory, or creates it. The state file is written last, so that a later start ignores the
// files of an interrupted first start.
func openPlan(dir string) (*plan, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	p := &plan{dir: dir}
	raw, err := os.ReadFile(p.path(stateFile))
	if err == nil {
		if err := json.Unmarshal(raw, &p.ports); err != nil {
			return nil, fmt.Errorf("%s: %w", p.path(stateFile), err)
		}
		return p, nil
	}
	if !os.IsNotExist(err) {
		return nil, err
	}
	if err := os.MkdirAll(p.path("pki"), 0o700); err != nil {
		return nil, err
	}
	if p.ports, err = freePorts(os.Getpid()); err != nil {
		return nil, err
	}
	if err := p.writePKI(); err != nil {
		return nil, err
	}
	if raw, err = json.Marshal(p.ports); err != nil {
		return nil, err
	}
	if err := os.WriteFile(p.path(stateFile+".new"), raw, 0o600); err != nil {
		return nil, err
	}
	return p, os.Rename(p.path(stateFile+".new"), p.path(stateFile))
}

// freePorts picks below the range from which Linux takes the local ports of outgoing connections: between two starts
// no other process on the machine gets these ports by chance. Control planes that start at the same time have different
// process ids and with them different ports. A random choice gave two servers one port in about one of thirty test runs.
func freePorts(pid int) (ports, error) {
	const first, triples = 12000, 6667
	var last error
	for attempt := range 100 {
		port := first + 3*((pid+attempt*1009)%triples)
		p := ports{APIServer: port, EtcdClient: port + 1, EtcdPeer: port + 2}
		if last = p.free(); last == nil {
			return p, nil
		}
	}
	return ports{}, fmt.Errorf("no free ports: %w", last)
}

// free is an error if something listens on one of the ports.
func (p ports) free() error {
	for _, port := range []int{p.APIServer, p.EtcdClient, p.EtcdPeer} {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return err
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}

// waitFree waits until nothing listens on the ports. If the former process was killed, the kernel kills its children,
// but does not wait for their end.
func (p ports) waitFree(limit time.Duration) error {
	end := time.Now().Add(limit)
	for {
		err := p.free()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (p *plan) path(name string) string { return filepath.Join(p.dir, name) }

func (p *plan) server() string { return fmt.Sprintf("https://127.0.0.1:%d", p.ports.APIServer) }

func (p *plan) etcdClientURL() string { return fmt.Sprintf("http://127.0.0.1:%d", p.ports.EtcdClient) }

func (p *plan) etcdPeerURL() string { return fmt.Sprintf("http://127.0.0.1:%d", p.ports.EtcdPeer) }

func (p *plan) etcdArgs() []string {
	return []string{
		"--name=" + etcdName,
		"--data-dir=" + p.path("etcd"),
		"--listen-client-urls=" + p.etcdClientURL(),
		"--advertise-client-urls=" + p.etcdClientURL(),
		"--listen-peer-urls=" + p.etcdPeerURL(),
		"--initial-advertise-peer-urls=" + p.etcdPeerURL(),
		"--initial-cluster=" + etcdName + "=" + p.etcdPeerURL(),
		"--unsafe-no-fsync",
		"--log-level=error",
	}
}

func (p *plan) apiserverArgs() []string {
	return []string{
		"--etcd-servers=" + p.etcdClientURL(),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--secure-port=" + strconv.Itoa(p.ports.APIServer),
		"--cert-dir=" + p.path("pki"),
		"--tls-cert-file=" + p.path(servingCert),
		"--tls-private-key-file=" + p.path(servingKey),
		"--service-cluster-ip-range=10.0.0.0/16,fd00:10::/112",
		// Clients: certificates of our CA, tokens of ServiceAccounts (TokenRequest), and the front proxy. The last
		// two groups of flags also fill the ConfigMap kube-system/extension-apiserver-authentication.
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.path(serviceAccountPublic),
		"--service-account-signing-key-file=" + p.path(serviceAccountKey),
		"--client-ca-file=" + p.path(caCert),
		"--requestheader-client-ca-file=" + p.path(frontProxyCACert),
		"--requestheader-allowed-names=" + frontProxyName,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + p.path(frontProxyCert),
		"--proxy-client-key-file=" + p.path(frontProxyKey),
		"--authorization-mode=Node,RBAC",
		// No controller creates the ServiceAccount "default" of a namespace, so that plugin would refuse every Pod.
		"--disable-admission-plugins=ServiceAccount",
		"--profiling=false",
		// Tests send bursts of several hundred parallel requests. These limits only bound the memory.
		"--max-requests-inflight=3000",
		"--max-mutating-requests-inflight=2000",
		"--audit-policy-file=" + p.path(auditPolicy),
		"--audit-log-path=" + p.path(auditLog),
		// Written while the request is being served, so that the entry exists when the client has the reply.
		"--audit-log-mode=blocking",
		// One file, never rotated while a test counts in it (MiB).
		"--audit-log-maxsize=4096",
	}
}

func (p *plan) writeAuditPolicy() error {
	const policy = `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],"rules":[{"level":"Metadata"}]}`
	return os.WriteFile(p.path(auditPolicy), []byte(policy+"\n"), 0o600)
}
