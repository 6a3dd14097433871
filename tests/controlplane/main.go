// Command ccm-controlplane runs etcd and kube-apiserver on loopback, for tests and demonstrations.
//
// One directory (--dir) contains all state: ports, keys, certificates, kubeconfig, data and audit log. A second start with
// the same directory, also after SIGKILL, is the same control plane on the same port. It prints one line of
// JSON to standard output once the API server is ready; logs go to standard error.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "ccm-controlplane:", err)
		os.Exit(1)
	}
}

func run() error {
	dir := flag.String("dir", "", "directory of all state, created on the first start")
	withParent := flag.Bool("exit-with-parent", false, "exit at once when standard input ends, so that no process outlives the parent")
	assets := flag.String("assets", "", "run the binaries `etcd` and `kube-apiserver` of this directory as children (as in KUBEBUILDER_ASSETS)")
	limit := flag.Duration("ready-timeout", 5*time.Minute, "give up when the API server is not ready after this time")
	flag.Parse()
	if *dir == "" || flag.NArg() > 0 {
		return errors.New("usage: ccm-controlplane --dir DIR [--exit-with-parent] [--assets DIR]")
	}
	if *assets == "" && !embedded {
		return errors.New("built without servers of its own: --assets is required")
	}
	p, err := openPlan(*dir)
	if err != nil {
		return err
	}
	if err := p.writeAuditPolicy(); err != nil {
		return err
	}
	if *withParent {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
	}
	if err := p.ports.waitFree(10 * time.Second); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		if err := announceWhenReady(ctx, p, *limit); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "ccm-controlplane:", err)
			os.Exit(1)
		}
	}()
	if *assets != "" {
		return runAssets(p, *assets)
	}
	return runEmbedded(p)
}

func announceWhenReady(ctx context.Context, p *plan, limit time.Duration) error {
	if err := waitReady(ctx, p, limit); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"ready":      true,
		"server":     p.server(),
		"kubeconfig": p.path(adminKubeconfig),
		"audit_log":  p.path(auditLog),
		"pid":        os.Getpid(),
	})
}
