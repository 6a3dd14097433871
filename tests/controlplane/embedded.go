//go:build !assets

package main

import (
	"fmt"
	"io"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// embedded reports that this build contains the servers.
const embedded = true

// runEmbedded runs etcd and kube-apiserver inside this process until kube-apiserver ends, which it does by itself on
// SIGTERM: its command installs the signal handlers of the process.
func runEmbedded(p *plan) error {
	stopEtcd, err := startEtcd(p)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer stopEtcd()
	cmd := app.NewAPIServerCommand()
	cmd.SetArgs(p.apiserverArgs())
	cmd.SilenceUsage = true
	cmd.SetOut(io.Discard)
	if err := cmd.Execute(); err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	return nil
}

func startEtcd(p *plan) (func(), error) {
	client, err := url.Parse(p.etcdClientURL())
	if err != nil {
		return nil, err
	}
	peer, err := url.Parse(p.etcdPeerURL())
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Name = etcdName
	cfg.Dir = p.path("etcd")
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.InitialCluster = etcdName + "=" + peer.String()
	// Test data must survive a kill of this process, not a crash of the machine.
	cfg.UnsafeNoFsync = true
	cfg.LogLevel = "error"
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.Server.ReadyNotify():
		return e.Close, nil
	case err := <-e.Err():
		e.Close()
		return nil, err
	case <-time.After(60 * time.Second):
		e.Close()
		return nil, fmt.Errorf("not ready after 60 s")
	}
}
