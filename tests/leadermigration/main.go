// Command leadermigration is a cloud-controller-manager on the app package of k8s.io/cloud-provider, as those of other
// clouds are, with its leader election and leader migration. Each of its controllers only posts to a
// URL as long as it runs: $CCM_MIGRATION_URL, with the name of the controller at the end.
package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/cli/flag"
	genericcontrollermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"
	"k8s.io/klog/v2"
)

const pause = 20 * time.Millisecond

func main() {
	cloudprovider.RegisterCloudProvider("writes", func(io.Reader) (cloudprovider.Interface, error) { return cloud{}, nil })
	opts, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		klog.Fatal(err)
	}
	controllers := map[string]app.ControllerInitFuncConstructor{}
	for _, name := range []string{
		names.CloudNodeController,
		names.CloudNodeLifecycleController,
		names.ServiceLBController,
		names.NodeRouteController,
	} {
		controllers[name] = posts(name)
	}
	build := func(*config.CompletedConfig) cloudprovider.Interface { return cloud{} }
	command := app.NewCloudControllerManagerCommand(
		opts, build, controllers, names.CCMControllerAliases(), flag.NamedFlagSets{}, wait.NeverStop)
	os.Exit(cli.Run(command))
}

// posts returns a controller with this name.
func posts(name string) app.ControllerInitFuncConstructor {
	run := func(ctx context.Context, _ genericcontrollermanager.ControllerContext) (controller.Interface, bool, error) {
		go write(ctx, os.Getenv("CCM_MIGRATION_URL")+"/"+name)
		return nil, true, nil
	}
	return app.ControllerInitFuncConstructor{
		InitContext: app.ControllerInitContext{ClientName: name},
		Constructor: func(app.ControllerInitContext, *config.CompletedConfig, cloudprovider.Interface) app.InitFunc {
			return run
		},
	}
}

func write(ctx context.Context, url string) {
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
		if err != nil {
			klog.Fatal(err)
		}
		if answer, err := http.DefaultClient.Do(request); err == nil {
			answer.Body.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// cloud supports nothing. The controllers themselves write.
type cloud struct{}

func (cloud) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool)                  { return nil, false }
func (cloud) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (cloud) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return nil, false }
func (cloud) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (cloud) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (cloud) Routes() (cloudprovider.Routes, bool)                              { return nil, false }
func (cloud) ProviderName() string                                              { return "writes" }
func (cloud) HasClusterID() bool                                                { return true }
