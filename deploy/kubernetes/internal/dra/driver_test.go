package dra

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"burst.dev/kubernetes/internal/cdi"
	"burst.dev/kubernetes/internal/daemon"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1"
	claims "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const node = "node-1"

// fakeDaemon serves until it is ended.
type fakeDaemon struct {
	lists chan []daemon.Device
	ends  chan error
}

func (f *fakeDaemon) List(ctx context.Context) ([]daemon.Device, error) {
	select {
	case devices := <-f.lists:
		return devices, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *fakeDaemon) Wait(ctx context.Context, _ string, event func()) error {
	event()
	select {
	case err := <-f.ends:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// eventually asks until the answer is right; the minute only bounds a failure.
func eventually(t *testing.T, what string, right func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !right(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

// claim is one that the scheduler has allocated.
func claim(name, device string) *resource.ResourceClaim {
	return &resource.ResourceClaim{
		ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: name, UID: "uid-1"},
		Status: resource.ResourceClaimStatus{Allocation: &resource.AllocationResult{Devices: resource.DeviceAllocationResult{Results: []resource.DeviceRequestAllocationResult{
			{Request: "rdma", Driver: "burst.dev", Pool: node, Device: device}, {Request: "gpu", Driver: "gpu.example.com", Pool: node, Device: "gpu0"},
		}}}},
	}
}

// The driver as the kubelet and the API server see it: registration, slice, claims, health.
func TestTheKubeletPreparesClaimsUntilTheDaemonEnds(t *testing.T) {
	directory, err := os.MkdirTemp("", "dra")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	allocated := claim("c", "burst0")
	client := fake.NewClientset(&core.Node{ObjectMeta: meta.ObjectMeta{Name: node, UID: "node-uid"}}, allocated)
	source := &fakeDaemon{lists: make(chan []daemon.Device, 1), ends: make(chan error)}
	source.lists <- []daemon.Device{{Name: "burst0", Interface: "eth0", Up: true, SpeedMbps: 25000, PathMTU: 4096, Addresses: []string{"10.1.2.3", "fe80::1", "10.1.2.4"}}, {Name: "burst1"}}
	// The clock stands still: what happens is by events.
	still := func(time.Duration) <-chan time.Time { return nil }
	watcher := daemon.NewWatcher(source, still)
	driver := &Driver{Name: "burst.dev", Pool: node, Node: cdi.Node{Kind: "burst.dev/rdma", Socket: "/run/burst/burstd.sock"}, Watcher: watcher, After: still, Report: func(text string) { t.Log(text) }}
	go watcher.Run(ctx, func(text string) { t.Log(text) })
	helper, err := kubeletplugin.Start(ctx, driver, kubeletplugin.DriverName("burst.dev"), kubeletplugin.NodeName(node), kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(directory), kubeletplugin.PluginDataDirectoryPath(directory))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(helper.Stop)
	files := filepath.Join(directory, "cdi")
	go driver.Publish(ctx, files, helper.PublishResources)

	// Registration: the kubelet finds the socket and asks who it is.
	registrar := registration.NewRegistrationClient(dial(t, filepath.Join(directory, "burst.dev-reg.sock")))
	info, err := registrar.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil || info.Name != "burst.dev" || info.Type != registration.DRAPlugin {
		t.Fatal(info, err)
	}
	if _, err := registrar.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}

	devices := func() []resource.Device {
		slices, err := client.ResourceV1().ResourceSlices().List(ctx, meta.ListOptions{})
		if err != nil || len(slices.Items) != 1 {
			return nil
		}
		return slices.Items[0].Spec.Devices
	}
	// The port of burst1 is down, so it is not offered.
	eventually(t, "a slice with burst0", func() bool { return len(devices()) == 1 })
	one := devices()[0]
	if one.Name != "burst0" || !*one.AllowMultipleAllocations || *one.Attributes["interface"].StringValue != "eth0" || *one.Attributes["ipv4"].StringValue != "10.1.2.3" {
		t.Fatalf("%+v", one)
	}
	if bandwidth := one.Capacity["bandwidth"]; bandwidth.Value.String() != "25G" {
		t.Fatal(bandwidth)
	}
	if _, err := os.Stat(driver.Node.File(files)); err != nil {
		t.Fatal(err)
	}

	// A claim, twice, as after a restart of the kubelet; those of other drivers are not ours.
	socket := dial(t, filepath.Join(directory, "dra.sock"))
	kubelet := claims.NewDRAPluginClient(socket)
	asked := &claims.Claim{Namespace: "default", Name: "c", Uid: string(allocated.UID)}
	for range 2 {
		answer, err := kubelet.NodePrepareResources(ctx, &claims.NodePrepareResourcesRequest{Claims: []*claims.Claim{asked}})
		if err != nil {
			t.Fatal(err)
		}
		got := answer.Claims[asked.Uid]
		if got.Error != "" || len(got.Devices) != 1 || got.Devices[0].CdiDeviceIds[0] != "burst.dev/rdma=burst0" {
			t.Fatal(got)
		}
	}

	// The end of the daemon: unhealthy at once, out of the slice, and no pod starts with it.
	stream, err := health.NewDRAResourceHealthClient(socket).NodeWatchResources(ctx, &health.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wait := func(wanted health.HealthStatus) {
		t.Helper()
		for {
			answer, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if answer.Devices[0].Health == wanted {
				return
			}
		}
	}
	wait(health.HealthStatus_HEALTHY)
	source.ends <- errors.New("the daemon has ended")
	wait(health.HealthStatus_UNHEALTHY)
	eventually(t, "an empty slice", func() bool { return len(devices()) == 0 })
	answer, err := kubelet.NodePrepareResources(ctx, &claims.NodePrepareResourcesRequest{Claims: []*claims.Claim{asked}})
	if err != nil || answer.Claims[asked.Uid].Error == "" {
		t.Fatal(answer, err)
	}
	// A claim that goes is let go all the same.
	if gone, err := kubelet.NodeUnprepareResources(ctx, &claims.NodeUnprepareResourcesRequest{Claims: []*claims.Claim{asked}}); err != nil || gone.Claims[asked.Uid].Error != "" {
		t.Fatal(gone, err)
	}
}

func TestAClaimOfAnotherNodeIsRefused(t *testing.T) {
	driver := &Driver{Name: "burst.dev", Pool: "node-2"}
	state := daemon.State{Serving: true, Devices: []daemon.Device{{Name: "burst0", Up: true}}}
	if made := driver.prepare(state, claim("c", "burst0")); made.Err == nil {
		t.Fatal(made)
	}
}

func TestTheFileOfAnEndedDaemonStays(t *testing.T) {
	directory := t.TempDir()
	one := cdi.Node{Kind: "burst.dev/rdma"}
	if err := WriteFile(one, directory, daemon.State{}); err != nil {
		t.Fatal(err)
	}
	if found, _ := os.ReadDir(directory); len(found) != 0 {
		t.Fatal("a file without devices")
	}
	if err := WriteFile(one, directory, daemon.State{Devices: []daemon.Device{{Name: "burst0"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(one.File(directory)); err != nil {
		t.Fatal(err)
	}
}
