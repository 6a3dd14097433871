package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// waitReady waits until /readyz is ok and the namespaces of every cluster exist. kube-apiserver creates them shortly after
// it reports that it is ready.
func waitReady(ctx context.Context, p *plan, limit time.Duration) error {
	client, err := adminClient(p)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"} {
		for {
			last := get(ctx, client, p.server()+path)
			if last == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("not ready after %s: %s: %w", limit, path, last)
			case <-time.After(25 * time.Millisecond):
			}
		}
	}
	return nil
}

func adminClient(p *plan) (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(p.path(adminCert), p.path(adminKey))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(p.path(caCert))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}},
	}, nil
}

func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 2000))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, body)
	}
	return nil
}
