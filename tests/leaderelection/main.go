// Command leaderelection contends for a Lease with client-go and posts to a URL as long as it leads.
// It represents every other program with which the replicas of this program may share a Lease.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file")
	namespace := flag.String("namespace", "kube-system", "namespace of the Lease")
	name := flag.String("name", "cloud-controller-manager", "name of the Lease")
	identity := flag.String("identity", "go", "name to contend under")
	lease := flag.Duration("lease-duration", 15*time.Second, "how long others wait for a leader")
	renew := flag.Duration("renew-deadline", 10*time.Second, "when a leader stops leading")
	retry := flag.Duration("retry-period", 2*time.Second, "time between two attempts")
	release := flag.Bool("release", true, "release the Lease on SIGTERM")
	url := flag.String("url", "", "where to post while leading")
	pause := flag.Duration("pause", 20*time.Millisecond, "time between two posts")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err)
	config.Timeout = max(time.Second, *renew/2)
	client, err := kubernetes.NewForConfig(config)
	check(err)
	wrote := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: *namespace, Name: *name},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: *identity},
		},
		LeaseDuration: *lease,
		RenewDeadline: *renew,
		RetryPeriod:   *retry,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				fmt.Println("leading")
				write(leading, *url, *pause)
				close(wrote)
			},
			OnStoppedLeading: func() { fmt.Println("not leading") },
			OnNewLeader:      func(leader string) { fmt.Println("leader", leader) },
		},
	})
	check(err)

	// The Lease is released only when the last post has returned, as every program must do that writes while it leads.
	elect, end := context.WithCancel(context.Background())
	go func() {
		<-ctx.Done()
		if !*release {
			os.Exit(0)
		}
		stopWriting()
		if elector.IsLeader() {
			<-wrote
		}
		end()
	}()
	elector.Run(elect)
	if ctx.Err() == nil {
		fmt.Println("leaderelection lost")
		os.Exit(1)
	}
}

var stopped, stopWriting = context.WithCancel(context.Background())

func write(leading context.Context, url string, pause time.Duration) {
	for leading.Err() == nil && stopped.Err() == nil {
		request, err := http.NewRequestWithContext(leading, http.MethodPost, url, nil)
		check(err)
		if answer, err := http.DefaultClient.Do(request); err == nil {
			answer.Body.Close()
		}
		select {
		case <-leading.Done():
		case <-stopped.Done():
		case <-time.After(pause):
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
