package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"time"
)

const (
	caCert               = "pki/ca.crt"
	servingCert          = "pki/apiserver.crt"
	servingKey           = "pki/apiserver.key"
	adminCert            = "pki/admin.crt"
	adminKey             = "pki/admin.key"
	frontProxyCACert     = "pki/front-proxy-ca.crt"
	frontProxyCert       = "pki/front-proxy-client.crt"
	frontProxyKey        = "pki/front-proxy-client.key"
	frontProxyName       = "front-proxy-client"
	serviceAccountKey    = "pki/service-account.key"
	serviceAccountPublic = "pki/service-account.pub"
)

// authority signs certificates. Its key stays in memory: nothing is signed after the first start.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// writePKI creates all keys and certificates and the kubeconfig of the administrator.
func (p *plan) writePKI() error {
	ca, err := p.newAuthority("kubernetes", caCert)
	if err != nil {
		return err
	}
	frontProxyCA, err := p.newAuthority("front-proxy", frontProxyCACert)
	if err != nil {
		return err
	}
	serving := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)},
	}
	if err := p.issue(ca, serving, servingCert, servingKey); err != nil {
		return err
	}
	admin := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if err := p.issue(ca, admin, adminCert, adminKey); err != nil {
		return err
	}
	proxy := &x509.Certificate{
		Subject:     pkix.Name{CommonName: frontProxyName},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if err := p.issue(frontProxyCA, proxy, frontProxyCert, frontProxyKey); err != nil {
		return err
	}
	key, err := p.newKey(serviceAccountKey)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := p.writePEM(serviceAccountPublic, "PUBLIC KEY", public); err != nil {
		return err
	}
	return p.writeAdminKubeconfig()
}

func (p *plan) newAuthority(name, certFile string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	a := &authority{cert: template, key: key}
	der, err := a.sign(template, key.Public())
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return a, p.writePEM(certFile, "CERTIFICATE", der)
}

func (p *plan) issue(a *authority, template *x509.Certificate, certFile, keyFile string) error {
	key, err := p.newKey(keyFile)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := a.sign(template, key.Public())
	if err != nil {
		return err
	}
	return p.writePEM(certFile, "CERTIFICATE", der)
}

func (a *authority) sign(template *x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	// An hour back, for a directory that is copied to a machine whose clock is behind.
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = template.NotBefore.AddDate(10, 0, 0)
	return x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
}

func (p *plan) newKey(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, p.writePEM(file, "EC PRIVATE KEY", der)
}

func (p *plan) writePEM(file, kind string, der []byte) error {
	return os.WriteFile(p.path(file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// writeAdminKubeconfig writes JSON, which is YAML as well; the certificates are inside, so the file can be copied.
func (p *plan) writeAdminKubeconfig() error {
	data := map[string][]byte{}
	for _, file := range []string{caCert, adminCert, adminKey} {
		raw, err := os.ReadFile(p.path(file))
		if err != nil {
			return err
		}
		data[file] = raw
	}
	type object = map[string]any
	raw, err := json.MarshalIndent(object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": "admin",
		"clusters": []object{{"name": "local", "cluster": object{
			"server": p.server(), "certificate-authority-data": data[caCert]}}},
		"users": []object{{"name": "admin", "user": object{
			"client-certificate-data": data[adminCert], "client-key-data": data[adminKey]}}},
		"contexts": []object{{"name": "admin", "context": object{"cluster": "local", "user": "admin"}}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(p.path(adminKubeconfig), append(raw, '\n'), 0o600)
}
