package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"burst.dev/kubernetes/internal/cdi"
	"burst.dev/kubernetes/internal/daemon"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// fakeKubelet is the kubelet's side of the directory of device plugins.
type fakeKubelet struct {
	api.UnimplementedRegistrationServer
	server     *grpc.Server
	registered chan *api.RegisterRequest
}

func (k *fakeKubelet) Register(_ context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	k.registered <- request
	return &api.Empty{}, nil
}

// startKubelet begins as a kubelet does: it removes all sockets.
func startKubelet(t *testing.T, directory string) *fakeKubelet {
	t.Helper()
	found, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range found {
		if err := os.Remove(filepath.Join(directory, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("unix", filepath.Join(directory, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	kubelet := &fakeKubelet{server: grpc.NewServer(), registered: make(chan *api.RegisterRequest, 10)}
	api.RegisterRegistrationServer(kubelet.server, kubelet)
	go kubelet.server.Serve(listener)
	t.Cleanup(kubelet.server.Stop)
	return kubelet
}

// dial calls the plugin as the kubelet does after a registration: it asks for options first, and if nothing answers waits for the next registration.
func (k *fakeKubelet) dial(t *testing.T, directory string) api.DevicePluginClient {
	t.Helper()
	for {
		request := receive(t, k.registered)
		if request.Version != api.Version || request.ResourceName != "burst.dev/rdma" {
			t.Fatal(request)
		}
		connection, err := grpc.NewClient("unix://"+filepath.Join(directory, request.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { connection.Close() })
		client := api.NewDevicePluginClient(connection)
		if _, err := client.GetDevicePluginOptions(context.Background(), &api.Empty{}); err == nil {
			return client
		}
	}
}

// receive takes what must come; the minute only bounds a failure.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case one := <-from:
		return one
	case <-time.After(time.Minute):
		t.Fatal("nothing comes")
		panic("unreachable")
	}
}

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

// world is a plugin with a daemon whose clock stands still.
type world struct {
	directory string
	source    *fakeDaemon
	clock     chan time.Time
}

func begin(t *testing.T, options Options) *world {
	t.Helper()
	// A path of a socket is short.
	directory, err := os.MkdirTemp("", "plugin")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{directory: directory, source: &fakeDaemon{lists: make(chan []daemon.Device, 1), ends: make(chan error)}, clock: make(chan time.Time)}
	w.source.lists <- []daemon.Device{{Name: "burst0", Up: true}}
	watcher := daemon.NewWatcher(w.source, func(time.Duration) <-chan time.Time { return w.clock })
	options.Directory, options.Resource = directory, "burst.dev/rdma"
	one, err := New(options, watcher)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { watcher.Run(ctx, func(text string) { t.Log(text) }); done <- nil }()
	go func() { done <- one.Run(ctx, func(text string) { t.Log(text) }) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := receive(t, done); err != nil {
				t.Error(err)
			}
		}
		os.RemoveAll(directory)
	})
	return w
}

// healths reads lists until one is as wanted: one of before the daemon was seen may come first.
func healths(t *testing.T, stream api.DevicePlugin_ListAndWatchClient, count int, health string) {
	t.Helper()
	for {
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		right := len(answer.Devices) == count
		for _, one := range answer.Devices {
			right = right && one.Health == health
		}
		if right {
			return
		}
	}
}

func list(t *testing.T, client api.DevicePluginClient) api.DevicePlugin_ListAndWatchClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	stream, err := client.ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func TestADaemonsEndMakesItsSharesUnhealthyWithoutAClock(t *testing.T) {
	directory := begin(t, Options{Shares: 3, CDI: true, Node: cdi.Node{Kind: "burst.dev/rdma"}})
	client := startKubelet(t, directory.directory).dial(t, directory.directory)
	stream := list(t, client)
	healths(t, stream, 3, api.Healthy)
	directory.source.ends <- errors.New("the daemon has ended")
	healths(t, stream, 3, api.Unhealthy)
	request := &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"burst0-1"}}}}
	if _, err := client.Allocate(context.Background(), request); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "burst0-1 cannot be used") {
		t.Fatal(err)
	}
	// A successor, after one pause.
	directory.clock <- time.Time{}
	directory.source.lists <- []daemon.Device{{Name: "burst0", Up: true}}
	healths(t, stream, 3, api.Healthy)
}

func TestAKubeletThatStartsAgainIsRegisteredWithAgain(t *testing.T) {
	w := begin(t, Options{Shares: 2, CDI: true})
	for range 3 {
		kubelet := startKubelet(t, w.directory)
		healths(t, list(t, kubelet.dial(t, w.directory)), 2, api.Healthy)
		kubelet.server.Stop()
	}
}

func TestAContainerGetsTheNameOfItsDeviceOnce(t *testing.T) {
	w := begin(t, Options{Shares: 5, CDI: true, Node: cdi.Node{Kind: "burst.dev/rdma"}})
	client := startKubelet(t, w.directory).dial(t, w.directory)
	healths(t, list(t, client), 5, api.Healthy)
	request := &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"burst0-1", "burst0-4"}}, {DevicesIds: []string{"burst0-2"}}}}
	answer, err := client.Allocate(context.Background(), request)
	if err != nil || len(answer.ContainerResponses) != 2 {
		t.Fatal(answer, err)
	}
	for _, one := range answer.ContainerResponses {
		if len(one.CdiDevices) != 1 || one.CdiDevices[0].Name != "burst.dev/rdma=burst0" || len(one.Mounts)+len(one.Devices)+len(one.Envs) != 0 {
			t.Fatal(one)
		}
	}
	for _, bad := range []string{"burst1-0", "burst0", "", "-"} {
		request.ContainerRequests = []*api.ContainerAllocateRequest{{DevicesIds: []string{bad}}}
		if _, err := client.Allocate(context.Background(), request); status.Code(err) != codes.Unavailable {
			t.Fatal(bad, err)
		}
	}
}

func TestARuntimeWithoutCDIGetsMountsNodesAndVariables(t *testing.T) {
	w := begin(t, Options{Shares: 1, Node: cdi.Node{Socket: "/run/burst/burstd.sock", Libraries: "/opt/burst", LibraryPath: true}})
	client := startKubelet(t, w.directory).dial(t, w.directory)
	healths(t, list(t, client), 1, api.Healthy)
	answer, err := client.Allocate(context.Background(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"burst0-0"}}}})
	if err != nil {
		t.Fatal(err)
	}
	one := answer.ContainerResponses[0]
	if len(one.CdiDevices) != 0 || len(one.Mounts) != 2 || !one.Mounts[0].ReadOnly || one.Envs["LD_LIBRARY_PATH"] != "/usr/lib/burst" {
		t.Fatal(one)
	}
	if len(one.Devices) != 1 || one.Devices[0].ContainerPath != "/dev/infiniband/burst0" || one.Devices[0].HostPath != "/dev/full" {
		t.Fatal(one.Devices)
	}
}

func TestOptionsThatCannotBeAreRefused(t *testing.T) {
	for _, options := range []Options{{Resource: "burst.dev/rdma"}, {Resource: "burst.dev/rdma", Shares: SharesMax + 1}, {Resource: "rdma", Shares: 1}, {Resource: "/rdma", Shares: 1}, {Resource: "a/", Shares: 1}} {
		if _, err := New(options, nil); err == nil {
			t.Fatal(options)
		}
	}
	if _, err := New(Options{Resource: "rdma/rdma_shared_device_a", Shares: 1}, nil); err != nil {
		t.Fatal(err)
	}
}
