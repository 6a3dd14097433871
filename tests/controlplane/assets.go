package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// runAssets runs prebuilt etcd and kube-apiserver binaries as children, with the flags of the embedded servers, until
// a signal arrives or one of them ends.
func runAssets(p *plan, dir string) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	// Pdeathsig is sent when the thread that started the child ends: stay on one thread.
	runtime.LockOSThread()

	etcd, err := startChild(filepath.Join(dir, "etcd"), p.etcdArgs())
	if err != nil {
		return err
	}
	defer etcd.stop()
	address := strings.TrimPrefix(p.etcdClientURL(), "http://")
	for {
		if c, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			c.Close()
			break
		}
		select {
		case err := <-etcd.done:
			return fmt.Errorf("etcd ended: %v", err)
		case <-signals:
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
	apiserver, err := startChild(filepath.Join(dir, "kube-apiserver"), p.apiserverArgs())
	if err != nil {
		return err
	}
	defer apiserver.stop()
	select {
	case <-signals:
		return nil
	case err := <-etcd.done:
		return fmt.Errorf("etcd ended: %v", err)
	case err := <-apiserver.done:
		return fmt.Errorf("kube-apiserver ended: %v", err)
	}
}

type child struct {
	cmd  *exec.Cmd
	done chan error
}

func startChild(program string, args []string) (*child, error) {
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, done: make(chan error, 1)}
	go func() {
		err := cmd.Wait()
		if err == nil {
			err = errors.New("exit status 0")
		}
		c.done <- err
		close(c.done)
	}()
	return c, nil
}

func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(10 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}
